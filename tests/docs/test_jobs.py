"""The job files of the cluster guide: read by what reads them, as far as that is here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from onnxtrain.cli.train import command

from .blocks import read_blocks

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
SBATCH = {
    "job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "requeue", "signal",
    "open-mode", "output",
}  # fmt: skip


def block(language: str, word: str) -> str:
    (found,) = [b.code for b in read_blocks(GUIDE) if b.language == language and word in b.code]
    return found


def check_torchrun(arguments: list[str]) -> None:
    """Options that torchrun knows, and behind ``-m onnxtrain train`` those of the command."""
    run = pytest.importorskip("torch.distributed.run")
    parsed = run.get_args_parser().parse_args(arguments)
    assert parsed.module
    assert parsed.training_script == "onnxtrain"
    train, *rest = parsed.training_script_args
    assert train == "train"
    context = command.make_context("train", rest, parent=None, resilient_parsing=True)
    assert isinstance(context, click.Context)
    assert context.params["auto_resume"]
    assert context.params["save_every"] == 500
    assert context.params["output"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_slurm():
    text = block("bash", "#SBATCH")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    options = {line.split()[1].removeprefix("--").partition("=")[0] for line in lines}
    assert options <= SBATCH
    joined = text.replace("\\\n", " ")
    (srun,) = [line for line in joined.splitlines() if line.startswith("srun")]
    words = shlex.split(srun.replace("$SLURM_JOB_NUM_NODES", "2"))
    check_torchrun(words[words.index("torchrun") + 1 :])


def test_kubernetes():
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(block("yaml", "kind: Job"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    check_torchrun(container["args"])
    name, subdomain = job["metadata"]["name"], service["metadata"]["name"]
    endpoint = next(a for a in container["args"] if a.startswith("--rdzv-endpoint="))
    assert endpoint == f"--rdzv-endpoint={name}-0.{subdomain}:{service['spec']['ports'][0]['port']}"
    assert pod["subdomain"] == subdomain
    assert service["spec"]["selector"] == {"job-name": name}
    mounts = {m["name"] for m in container["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["volumes"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


def test_kubernetes_schema():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    yaml = pytest.importorskip("yaml")
    for part in yaml.safe_load_all(block("yaml", "kind: Job")):
        validate.validate(part, "1.31", strict=True)
