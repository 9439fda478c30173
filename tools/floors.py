"""The lowest or the newest versions that pyproject.toml claims, as requirements for pip.

    python tools/floors.py lowest     requirements-test.txt, with the lowest versions claimed
    python tools/floors.py newest     the same, with no version pinned from above

Needs `packaging`, and `tomli` before Python 3.11; `dev.py` installs both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LINT = {"ruff", "mypy"}
"""Left out: they look at the sources, not at what runs, and need newer packages than the lowest."""

UNTESTED = {"ray", "model-signing", "pyopenssl"}
"""Left out too: flwr asks for one version of the first, and the others bring forty packages, of
which some ask for newer ones than the lowest. Their tests are skipped there."""

NEWEST_ONLY = {"onnxruntime-genai", "transformers", "accelerate", "peft"}
"""Guests of the tests that ask for the newest onnxruntime or click themselves; not for the
lowest."""

OF_THEIR_TIME = ("scipy<1.14", "sqlalchemy<2.1")
"""What guests of the lowest versions bring without a limit and do not go with today: scikit-learn
1.5 warns of the newest SciPy in every fit, MLflow 2.16 does not find a name in SQLAlchemy 2.1."""


def claimed() -> list[Requirement]:
    """What pyproject.toml asks for, its extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    lines = [line for group in (project["dependencies"], *extras) for line in group]
    return [r for r in map(Requirement, lines) if r.name not in UNTESTED]


def of_tests() -> list[Requirement]:
    """What the tests install besides."""
    lines = (ROOT / "requirements-test.txt").read_text("utf-8").splitlines()
    stripped = (line.partition("#")[0].strip() for line in lines)
    left_out = LINT | UNTESTED
    return [r for r in map(Requirement, filter(None, stripped)) if r.name not in left_out]


def floor(requirement: Requirement) -> Version:
    """The lowest version that a requirement allows."""
    versions = [Version(s.version) for s in requirement.specifier if s.operator in (">=", "==")]
    if not versions:
        raise ValueError(f"{requirement} in pyproject.toml has no lowest version.")
    return max(versions)


def lowest() -> list[Requirement]:
    """The tests' requirements, with what pyproject.toml claims at its lowest version."""
    floors: dict[str, Requirement] = {}
    for requirement in claimed():
        name = canonicalize_name(requirement.name)
        if name not in floors or floor(floors[name]) < floor(requirement):
            floors[name] = requirement
    for requirement in floors.values():
        requirement.specifier = SpecifierSet(f"=={floor(requirement)}")
    guests = _without(of_tests(), {*floors, *NEWEST_ONLY})
    return [*floors.values(), *guests, *map(Requirement, OF_THEIR_TIME)]


def newest() -> list[Requirement]:
    """The tests' requirements, with what pyproject.toml claims at any version."""
    names = {canonicalize_name(requirement.name) for requirement in claimed()}
    return [*claimed(), *_without(of_tests(), names)]


def _without(requirements: list[Requirement], names: Iterable[str]) -> list[Requirement]:
    return [r for r in requirements if canonicalize_name(r.name) not in names]


if __name__ == "__main__":
    print(*{"lowest": lowest, "newest": newest}[sys.argv[1]](), sep="\n")
