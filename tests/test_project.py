"""What surrounds the code says the same as the code: workflows, recipe, citation."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import onnxtrain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    """The lines that the steps of a workflow run."""
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_run_what_developers_run(workflow: Path) -> None:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    names = [n for line in commands(workflow) for n in re.findall(r"dev\.py (\w+)", line)]
    assert all(callable(getattr(dev, name)) for name in names)
    assert names or "bash .ci/run" in commands(workflow)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_what_the_commands_name_is_there(workflow: Path) -> None:
    for line in commands(workflow):
        for module in re.findall(r"-m (tests\.[\w.]+)", line):
            assert importlib.util.find_spec(module) is not None, module
        for script in re.findall(r"bash (\S+)", line):
            assert (ROOT / script).is_file()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_a_job_asks_only_for_what_is_known_before_it_runs(workflow: Path) -> None:
    """GitHub refuses a whole file in which, say, a job's variables ask for `runner`."""
    known = {"github", "needs", "strategy", "matrix", "vars", "secrets", "inputs"}
    for job in yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values():
        settings = {name: value for name, value in job.items() if name != "steps"}
        for expression in re.findall(r"\$\{\{(.*?)\}\}", str(settings)):
            assert set(re.findall(r"\b([a-z]\w*)\.", expression)) <= known, expression


def test_the_matrix_of_the_workflow_takes_the_options_of_the_tests() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    systems = {*matrix["os"], *(row["os"] for row in matrix["include"])}
    for start in ("ubuntu-latest", "ubuntu-24.04-arm", "macos", "windows"):
        assert any(system.startswith(start) for system in systems), start
    assert {row["versions"] for row in matrix["include"]} == {"", "--lowest", "--newest"}
    for row in matrix["include"]:
        assert row["python"] in matrix["python"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda p: p.stem)
def test_no_job_can_hang_or_write_more_than_it_says(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text("utf-8"))
    assert content["permissions"]["contents"] == "read"
    long = [n for n, job in content["jobs"].items() if n != "publish"]
    assert all("timeout-minutes" in content["jobs"][name] for name in long)


def test_the_matrix_has_every_python_that_is_claimed() -> None:
    claimed = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    assert matrix["jobs"]["tests"]["strategy"]["matrix"]["python"] == claimed
    assert str(claimed).replace("[", "(").replace("]", ")").replace("'", '"') in (
        ROOT / "dev.py"
    ).read_text("utf-8")


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    needed = {
        r.split()[0]: r.split()[1] for r in recipe["requirements"]["run"] if "python" not in r
    }
    claimed = {r.name: str(r.specifier) for r in map(Requirement, PROJECT["dependencies"])}
    assert needed == claimed
    assert recipe["context"]["version"] == onnxtrain.__version__


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == onnxtrain.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
