#!/usr/bin/env python3
"""All a fresh clone needs, with nothing but Python >= 3.10.

    python3 dev.py demo                 train a small digits classifier end to end
    python3 dev.py test                 ruff, mypy --strict and all tests (arguments go to pytest)
    python3 dev.py test --fast          the same with the fast tests: some of every part
    python3 dev.py test --coverage      the same with a table of what the tests execute
    python3 dev.py test --lowest        the tests with the lowest versions that we claim
    python3 dev.py test --newest        the tests with the newest versions that there are
    python3 dev.py test --without-torch the tests that need no torch, where there is none
    python3 dev.py matrix               the tests with every installed Python, and both of these;
                                        rows may be named: matrix 3.12 newest --fast --tidy
    python3 dev.py build                wheel, sources, bill of materials: built twice, compared
    python3 dev.py fuzz                 throw damaged files at every parser, for hours if asked
    python3 dev.py api                  write tests/api/snapshot.txt again
    python3 dev.py docs                 write the generated pages again, and build the site
    python3 dev.py bench                measure against the peers
    python3 dev.py conformance LIST     try a public list of networks or operators
    python3 dev.py python -m ruff ...   any program of the environment (pre-commit uses it)

Sets up ``.venv`` beside this file the first time (and again when pyproject.toml or the
requirements change), then runs the command in it; ``ONNXTRAIN_VENV`` names another folder. The
lowest and the newest versions are in ``.venv-lowest`` and ``.venv-newest``. The benchmark and the
lists have environments of their own, see ``benchmarks/environments.py``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / os.environ.get("ONNXTRAIN_VENV", ".venv")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Releases that pyproject.toml claims; `matrix` takes those that are installed."""
FAST = (
    "tests/api", "tests/test_claims.py", "tests/test_differentiate.py", "tests/test_front_door.py",
    "tests/test_layers.py", "tests/graph", "tests/normalize/test_normalize.py",
    "tests/normalize/test_contrib.py", "tests/normalize/test_raise_opset.py",
    "tests/rules/test_rules.py", "tests/autodiff/test_expand.py", "tests/passes", "tests/optim",
    "tests/onnxblock", "tests/artifacts/test_generate.py", "tests/runtime",
    "tests/cli/test_mistakes.py", "tests/compat/ort/test_session.py", "tests/compat/test_moving.py",
    "tests/torch/test_ortmodule.py", "tests/sklearn/test_learning.py",
    "tests/distributed/test_parts.py", "tests/flower/test_local.py", "tests/js/test_server.py",
    "tests/finite/test_numbers.py", "tests/conformance/test_page.py", "tests/losses",
    "tests/structure/test_one_of_each.py", "tests/faults/test_atomic.py", "tests/lora/test_lora.py",
    "tests/training_info", "tests/golden", "tests/text", "tests/quant", "tests/transfer",
    "tests/streams", "tests/drawing",
)  # fmt: skip
"""What ``test --fast`` runs, but for tests marked slow: all stages, and some of each front end."""
WORKERS = "3"
"""Processes of the tests: two cores stand still while tests wait for programs that they started."""
VERSIONS = {"--lowest": "lowest", "--newest": "newest"}
"""Options of ``test`` that take other versions than requirements-test.txt."""
WITHOUT_TORCH = "--without-torch"
"""Option of ``test`` for a Python that has no torch, or only one with gigabytes beside it."""
NEEDS_TORCH = ("torch", "transformers", "accelerate", "peft", "lightning")
"""What that leaves out of requirements-test.txt. `tests/conftest.py` skips what imports them."""

EXPLAINED_HERE = ("test", "matrix", "build", "api", "docs")
"""Commands whose ``--help`` is the text above; the others are programs with their own."""


def main() -> int:
    """Run one command; the exit code is the first one that is not zero."""
    commands = {
        "demo": demo, "test": test, "fuzz": fuzz, "api": api, "docs": docs, "bench": bench,
        "conformance": conformance, "python": python, "matrix": matrix, "build": build,
    }  # fmt: skip
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        print(f"usage: python3 dev.py {'|'.join(commands)} [arguments]", file=sys.stderr)
        return 2
    if sys.argv[1] in EXPLAINED_HERE and {"-h", "--help"} & set(sys.argv[2:]):
        print(__doc__)
        return 0
    if sys.version_info < (3, 10):  # noqa: UP036 - this file runs before anything is installed
        print("onnxtrain needs Python 3.10 or newer.", file=sys.stderr)
        return 2
    return commands[sys.argv[1]](sys.argv[2:])


def demo(arguments: list[str]) -> int:
    """Train a small digits classifier end to end and export it."""
    set_up("demo", [])
    return run("-m", "onnxtrain", "demo", *arguments)


def test(arguments: list[str]) -> int:
    """Lint, types and tests."""
    chosen = [a for a in arguments if a not in {"--fast", "--coverage", WITHOUT_TORCH, *VERSIONS}]
    if "--fast" in arguments:
        names_tests = any((ROOT / a.partition("::")[0]).exists() for a in chosen)
        chosen += ["-m", "not slow", *(() if names_tests else FAST)]
    if "--coverage" in arguments:
        chosen += ["--cov", "--cov-report", "term:skip-covered", "--cov-report", "html"]
    tests = ("-m", "pytest", "-n", WORKERS, "--dist", "worksteal", *chosen)
    for option in VERSIONS.keys() & arguments:
        return test_with(VERSIONS[option], tests)
    steps = [
        ("-m", "ruff", "format", "--check", "."),
        ("-m", "ruff", "check", "."),
        ("-m", "mypy", *types_of()),
        tests,
    ]
    if WITHOUT_TORCH in arguments:
        set_up_without_torch()
        steps = [step for step in steps if "mypy" not in step]  # it reads torch's types
    else:
        set_up_tests()
    os.environ.setdefault("MALLOC_PERTURB_", "165")  # glibc: memory that was freed is written over
    for step in steps:
        print("+ python", " ".join(step), flush=True)
        code = run(*step)
        if code:
            return code
    return 0


def types_of() -> tuple[str, ...]:
    """As which Python mypy reads: pyproject.toml says the lowest, where packages allow that.

    numpy's types for Python 3.12 and newer cannot be read as those of 3.10.
    """
    newer = sys.version_info[:2] >= (3, 12)
    return ("--python-version", "{}.{}".format(*sys.version_info[:2])) if newer else ()


def test_with(versions: str, tests: tuple[str, ...]) -> int:
    """Run tests with the lowest or the newest versions that pyproject.toml claims."""
    if versions == "lowest" and sys.version_info >= (3, 13):
        print("The lowest versions have packages for Python 3.10 to 3.12 only.", file=sys.stderr)
        return 2
    environment = ROOT / f".venv-{versions}"
    create(environment)
    install(environment, ["packaging", "tomli"])
    floors = [str(python_of(environment)), "tools/floors.py", versions]
    requirements = environment / "requirements.txt"
    requirements.write_bytes(subprocess.check_output(floors, cwd=ROOT))
    set_up("test", ["-r", str(requirements)], environment)
    print("+ python", *tests, flush=True)
    return subprocess.call([str(python_of(environment)), *tests], cwd=ROOT)


def matrix(arguments: list[str]) -> int:
    """Run the tests with every installed Python, then with the lowest and newest versions.

    Rows may be named (``matrix 3.12 newest --fast``); ``--tidy`` deletes the environment of each
    row after its run. All else goes to the test command.
    """
    rows = (*PYTHONS, *VERSIONS.values())
    chosen = [row for row in rows if row in arguments] or rows
    options = [a for a in arguments if a not in {"--tidy", *rows}]
    results: dict[str, str] = {}
    for row in chosen:
        started = time.monotonic()
        environment = ROOT / f".venv-{row}"
        code = call_row(row, environment, options)
        minutes = (time.monotonic() - started) / 60
        results[row] = "not installed" if code is None else f"{said(code)} in {minutes:.0f} min"
        if "--tidy" in arguments:
            shutil.rmtree(environment, ignore_errors=True)
    for row, result in results.items():
        print(f"{'Python ' + row if row in PYTHONS else row:14} {result}")
    return int(any(result.startswith(FAILED) for result in results.values()))


def call_row(row: str, environment: Path, options: list[str]) -> int | None:
    """The exit code of the tests of one row of the matrix, None if its Python is missing."""
    if row not in PYTHONS:
        call = [sys.executable, "dev.py", "test", f"--{row}", *options]
        return subprocess.call(call, cwd=ROOT)
    interpreter = installed(row)
    if interpreter is None:
        return None
    variables = {**os.environ, "ONNXTRAIN_VENV": environment.name}
    return subprocess.call([interpreter, "dev.py", "test", *options], cwd=ROOT, env=variables)


def installed(version: str) -> str | None:
    """A Python of this version that starts: the one on the path, or else one of pyenv's.

    pyenv puts a command for each of its versions on the path; those start in folders that choose
    this version, and say "command not found" elsewhere.
    """
    name = f"python{version}"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    newest_first = sorted(
        versions.glob(f"{version}.*/bin/{name}"),
        key=lambda path: [int(n) for n in re.findall(r"\d+", path.parts[-3])],
        reverse=True,
    )
    for candidate in (shutil.which(name), *map(str, newest_first)):
        if candidate and not subprocess.call([candidate, "-c", ""], stderr=subprocess.DEVNULL):
            return candidate
    return None


FAILED = "failed"


def said(code: int) -> str:
    """An exit code in a word."""
    return FAILED if code else "passed"


def build(arguments: list[str]) -> int:
    """Build wheel and sources twice, compare them, and write the bill of materials."""
    set_up_tests()
    install(VENV, ["build", "hatchling"])
    return run("tools/build_release.py", *arguments)


def api(arguments: list[str]) -> int:
    """Write the snapshot of the public names and signatures again."""
    set_up_tests()
    return run("tools/api_snapshot.py", *arguments)


def docs(arguments: list[str]) -> int:
    """Write the generated pages again (``--check``: compare them), and build the site.

    A warning is an error. The site is in ``site/``, and can be read from there in a browser.
    """
    set_up_tests()
    pages = ("tools/gen_ops.py", "tools/gen_conformance.py", "tools/gen_cli.py")
    pictures = ("pipeline.svg", "artifacts.svg", "gradient.svg", "gradient.html")
    stale = max(run(page, *arguments) for page in pages)
    if "--check" not in arguments:
        stale |= run("-m", "tools.make_pictures", *pictures)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    return stale or run("-m", "mkdocs", "build", "--strict", "--quiet")


def python(arguments: list[str]) -> int:
    """Run a program of the environment that the tests have."""
    set_up_tests()
    return run(*arguments)


def bench(arguments: list[str]) -> int:
    """Measure all workloads against the peers (``--quick NAME`` tries it out, ``--help``)."""
    return subprocess.call([sys.executable, "-m", "benchmarks.run", *arguments], cwd=ROOT)


def conformance(arguments: list[str]) -> int:
    """Try a public list of networks or operators (``--help`` says which there are)."""
    return subprocess.call([sys.executable, "-m", "conformance", *arguments], cwd=ROOT)


def fuzz(arguments: list[str]) -> int:
    """Read damaged files for as long as you like (``--inputs``, ``--seconds``, ``--door``)."""
    set_up_tests()
    return run("-m", "tests.hostile.fuzz", *arguments)


def run(*arguments: str) -> int:
    """Run Python of the environment."""
    return subprocess.call([str(python_of(VENV)), *arguments], cwd=ROOT)


def set_up_tests() -> None:
    """The environment of the tests."""
    set_up("test", ["-r", "requirements-test.txt"])


def set_up_without_torch() -> None:
    """The environment of the tests but for torch; they leave out what imports it."""
    create(VENV)
    lines = (ROOT / "requirements-test.txt").read_text("utf-8").splitlines()
    left = [line for line in lines if re.split(r"\W", line, maxsplit=1)[0] not in NEEDS_TORCH]
    requirements = VENV / "requirements.txt"
    requirements.write_text("\n".join(left) + "\n", "utf-8")
    set_up("without-torch", ["-r", str(requirements)])
    os.environ["ONNXTRAIN_LEFT_OUT"] = " ".join(NEEDS_TORCH)


def set_up(name: str, requirements: list[str], environment: Path = VENV) -> None:
    """Create an environment and install the package, unless that has been done already."""
    wanted = [ROOT / "pyproject.toml", *(ROOT / r for r in requirements if r != "-r")]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in wanted)).hexdigest()
    stamp = environment / f".{name}"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    create(environment)
    install(environment, [*requirements, "-e", "."])
    stamp.write_text(digest)


def create(environment: Path) -> None:
    """Create an environment, unless there is one."""
    if not python_of(environment).is_file():
        print(
            f"setting up {environment}: packages are fetched, once, for some minutes …", flush=True
        )
        venv.create(environment, with_pip=True)


def install(environment: Path, packages: list[str]) -> None:
    """Install packages by pip."""
    pip = [str(python_of(environment)), "-m", "pip", "install"]
    options = ["--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*pip, *options, *packages], cwd=ROOT)


def python_of(environment: Path) -> Path:
    """Python of an environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


if __name__ == "__main__":
    sys.exit(main())
