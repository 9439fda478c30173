"""The other commands, and what all of them share."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain.cli.app import COMMANDS
from onnxtrain.cli.measure import FORWARD_BACKWARD, WARM_UP, profiler_note, read_profile
from onnxtrain.cli.recipes import LOSSES, METRICS, SCHEDULES, optimizer_names
from onnxtrain.cli.settings import read_recompute
from onnxtrain.cli.version import PACKAGES
from onnxtrain.passes import AFTER, BEFORE
from onnxtrain.training_info import Training

from .models import blobs, classifier, regressor, save, write_csv, write_npz


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(run, name):
    result = run(name, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert f"onnxtrain {name}" in result.out
    assert "--debug" in result.out
    assert "--quiet" in result.out


def test_help_lists_commands(run):
    result = run("--help")
    assert result.code == 0
    for name in COMMANDS:
        assert f"  {name} " in result.out


def test_unknown_command_lists_commands(run):
    result = run("tarin")
    assert result.code == 2
    assert "train" in result.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell):
    environment = {**os.environ, "_ONNXTRAIN_COMPLETE": f"{shell}_source"}
    out = subprocess.run(
        [sys.executable, "-m", "onnxtrain"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "_ONNXTRAIN_COMPLETE" in out.stdout


def test_completion_of_a_loss():
    words = {"COMP_WORDS": "onnxtrain train m.onnx --loss cross", "COMP_CWORD": "4"}
    environment = {**os.environ, "_ONNXTRAIN_COMPLETE": "bash_complete", **words}
    out = subprocess.run(
        [sys.executable, "-m", "onnxtrain"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "cross_entropy" in out.stdout


def test_version(run):
    result = run("version")
    assert result.code == 0
    assert re.search(rf"^onnxruntime +{re.escape(ort.__version__)} ", result.out, re.MULTILINE)
    assert run("--version").out.startswith("onnxtrain, version")


def test_version_knows_every_extra():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    packages = {name.lower() for name in re.findall(r'"([\w-]+)[^"]*"', extras)}
    beside = {"onnxscript", "pyopenssl", "mpich"}  # what others bring along
    assert packages - beside <= {name.lower() for name in PACKAGES}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_output_has_a_short_name(run, name):
    text = run(name, "--help").out
    assert not re.search(r"^  --output ", text, re.MULTILINE)


def test_a_closed_pipe_is_no_error():
    classifier()
    shell = f"{sys.executable} -m onnxtrain inspect model.onnx --json | head -c 5"
    out = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert out.stderr == ""


# --- inspect ------------------------------------------------------------------------------------


def test_inspect(run):
    classifier()
    result = run("inspect", "model.onnx")
    assert result.code == 0
    for words in ("x     float32  N×4", "N×3", "enc_w", "59 elements in 3 parameters", "MatMul"):
        assert words in result.out
    assert "Nothing blocks a gradient" in result.out
    assert "\x1b" not in result.out


def test_inspect_json(run):
    classifier()
    found = json.loads(run("inspect", "model.onnx", "--json", "--batch-size", "10").out)
    assert [p["name"] for p in found["parameters"] if p["trainable"]] == [
        "enc_w", "head_w", "head_b",
    ]  # fmt: skip
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 4]}]
    parameters, activations = 59 * 4, 10 * (8 + 8 + 3) * 4
    assert found["memory"]["activations"] == activations
    assert found["memory"]["total"] == 4 * parameters + activations


def test_inspect_names_what_blocks(run):
    save(
        "g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}, float[2] unused = {1, 2}>"
        "{ h = Mul(x, w) y = mine.Strange(h) }",
        head='<ir_version: 8, opset_import: ["": 18, "mine": 1]>',
    )
    result = run("inspect", "model.onnx")
    assert result.code == 0
    assert "Strange" in result.out
    found = json.loads(run("inspect", "model.onnx", "--json").out)
    assert not any(p["trainable"] for p in found["parameters"])
    assert found["blockers"] or found["problem"]


# --- check, differentiate, draw -----------------------------------------------------------------


def test_check(run):
    classifier()
    result = run("check", "model.onnx")
    assert result.code == 0
    assert "3 of 3 gradients agree" in result.out
    found = json.loads(run("check", "model.onnx", "--wrt", "x", "--json").out)
    assert [c["name"] for c in found["checks"]] == ["x"]


def test_check_tells_a_wrong_gradient(run):
    classifier()
    result = run("check", "model.onnx", "--rtol", "-1")
    assert result.code == 1
    assert "WRONG" in result.out


def test_check_with_inputs(run):
    classifier()
    np.savez("inputs.npz", x=blobs(5)[0])
    assert run("check", "model.onnx", "--inputs", "inputs.npz").code == 0
    np.savez("inputs.npz", x=blobs(5)[0][:, :2])
    assert run("check", "model.onnx", "--inputs", "inputs.npz").code == 1


def test_differentiate(run):
    regressor()
    result = run("differentiate", "regressor.onnx", "-o", "gradient.onnx", "--vjp")
    assert result.code == 0, result.err
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    session = ort.InferenceSession("gradient.onnx", providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["w_grad"], {"x": x, "y_grad": np.ones((2, 1), np.float32)})
    np.testing.assert_allclose(gradient[:, 0], x.sum(axis=0))
    result = run("differentiate", "regressor.onnx", "-o", "other.onnx", "--wrt", "v", "--vjp")
    assert result.code == 1
    assert "'v'" in result.err
    assert not Path("other.onnx").exists()


EXPLAINED = re.compile(r"(?P<name>.+?) +(\d+) → +(\d+) nodes +(\d+\.\d) ms  (?P<gains>.+)")


@pytest.mark.parametrize("arguments", [(), ("--wrt", "w"), ("-o", "gradient.onnx")])
def test_differentiate_explains(run, arguments):
    """Each stage and pass, whatever is asked for; the counts follow on each other."""
    regressor()
    result = run("differentiate", "regressor.onnx", "--vjp", "--explain", *arguments)
    assert result.code == 0, result.err
    rows = [m for line in result.out.splitlines() if (m := EXPLAINED.fullmatch(line))]
    names = [m["name"] for m in rows]
    middle = [*(p.name for p in BEFORE), "differentiate", *(p.name for p in AFTER)]
    assert names == ["normalize", *middle]
    counts = [(int(m[2]), int(m[3])) for m in rows]
    assert all(after == before for (_, after), (before, _) in itertools.pairwise(counts))
    assert counts[0][0] == len(onnx.load("regressor.onnx").graph.node)
    assert f"{counts[-1][1]} nodes" in result.out
    assert Path("gradient.onnx").exists() == ("-o" in arguments)
    assert sorted(p.name for p in Path().iterdir()) == sorted(
        ["regressor.onnx", *(["gradient.onnx"] if "-o" in arguments else [])]
    )


def test_differentiate_wants_a_file_or_to_explain(run):
    regressor()
    result = run("differentiate", "regressor.onnx")
    assert result.code == 2
    assert "--explain" in result.err


SVG = "{http://www.w3.org/2000/svg}"


def test_draw(run):
    classifier()
    text = run("draw", "model.onnx").out
    assert "▶ r = Relu(h)" in text
    result = run("draw", "model.onnx", "--gradient", "-o", "graph.svg")
    assert result.code == 0, result.err
    root = ET.parse("graph.svg").getroot()
    labels = {t.text for t in root.iter(f"{SVG}text")}
    assert {"forward", "backward", "MatMul", "Relu", "head_w_grad"} <= labels
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect")]
    backward = int(result.out.split("nodes, ")[1].split()[0])
    assert backward > 3
    assert fills.count("#ffedd5") == backward + 1  # and one in the legend
    assert fills.count("#dbeafe") == 3 + 1


def test_draw_halves_of_a_training_model(run):
    classifier()
    assert run("artifacts", "model.onnx", "--loss", "cross_entropy", "--output", "art").code == 0
    lines = run("draw", "art/training_model.onnx").out.splitlines()
    forward = [line for line in lines if line.startswith("▶")]
    backward = [line for line in lines if line.startswith("◀")]
    assert any("Relu(" in line for line in forward)
    assert any("enc_w_grad" in line for line in backward)
    assert not any("_grad" in line.split(" = ")[0] for line in forward)


def test_draw_a_loss_in_the_model_as_forward(run):
    save(
        "g (float[N, 2] x, int64[N] t) => (float loss) <float[2, 2] w = {1, 2, 3, 4}>"
        "{ s = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(s, t) }"
    )
    lines = run("draw", "model.onnx", "--gradient").out.splitlines()
    marks = {line.split(" = ")[1].split("(")[0]: line[0] for line in lines if " = " in line}
    assert {marks[n] for n in ("MatMul", "LogSoftmax", "GatherElements", "ReduceMean")} == {"▶"}
    assert {marks[n] for n in ("Exp", "Gemm")} == {"◀"}


def test_draw_the_update_apart(run):
    classifier()
    arguments = ("--loss", "mse", "--optimizer", "sgd", "--output", "art", "--step-model")
    assert run("artifacts", "model.onnx", *arguments).code == 0
    lines = run("draw", "art/step_model.onnx").out.splitlines()
    updated = [line for line in lines if ".updated = " in line]
    assert updated
    assert all(line.startswith("●") for line in updated)
    assert sum(line.startswith("▶") for line in lines) == 6
    assert run("draw", "art/step_model.onnx", "-o", "step.svg").code == 0
    assert ">update</text>" in Path("step.svg").read_text()


def test_draw_refuses_what_nobody_can_look_at(run):
    classifier()
    result = run("draw", "model.onnx", "--max-nodes", "2", "-o", "graph.svg")
    assert result.code == 1
    assert "--max-nodes" in result.err
    assert run("draw", "model.onnx", "-o", "graph.gif").code == 1


# --- artifacts, export, convert, bench ----------------------------------------------------------


def test_artifacts_and_export(run):
    classifier()
    result = run(
        "artifacts", "model.onnx", "--loss", "cross_entropy", "--optimizer", "sgd", "--momentum",
        "0.9", "--freeze", "enc_*", "--output", "art", "--step-model", "--nominal-checkpoint",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert {p.name for p in Path("art").iterdir()} == {
        "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "step_model.onnx",
        "checkpoint", "nominal_checkpoint", "device.json",
    }  # fmt: skip
    assert run("export", "art", "-o", "out.onnx").code == 0
    x, _ = blobs(6)
    found, expected = (
        ort.InferenceSession(p, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for p in ("out.onnx", "model.onnx")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_export_of_a_run(run):
    classifier()
    write_npz()
    arguments = ("--data", "train.npz", "--loss", "cross_entropy", "--output", "out")
    assert run("train", "model.onnx", *arguments).code == 0
    for given in (["out"], ["out/checkpoint", "--artifacts", "out/artifacts"]):
        assert run("export", *given, "-o", "again.onnx").code == 0
        assert Path("again.onnx").read_bytes() == Path("out/model.onnx").read_bytes()
    result = run("export", "out", "-o", "again.onnx", "--outputs", "nothing")
    assert result.code == 1
    assert "'nothing'" in result.err


def test_training_information_beside_the_artifacts(run):
    classifier()
    asked = ("artifacts", "model.onnx", "--loss", "cross_entropy", "--output", "art")
    result = run(*asked, "--freeze", "enc_*", "--training-info", "--learning-rate", "0.05")
    assert result.code == 0, result.err
    training = Training("art/training_info.onnx")
    assert not any(name.startswith("enc_") for name in training.algorithm.updates)
    x, y = blobs(60)
    losses = [training.step({"x": x, "labels": y})["loss"] for _ in range(30)]
    assert losses[-1] < losses[0]
    wrong = run(*asked, "--learning-rate", "0.05")
    assert wrong.code != 0
    assert "--training-info" in wrong.err


def test_failed_artifacts_leave_nothing(run):
    classifier()
    result = run(
        "artifacts", "model.onnx", "--loss", "nll", "--output", "art", "--loss-output", "z"
    )
    assert result.code == 1
    assert not Path("art").exists()


def test_convert(run):
    old = Path(__file__).parents[1] / "compat" / "data" / "broadcasting"
    result = run("convert", old, "--output", "new")
    assert result.code == 0, result.err
    assert "new/training_model.onnx" in result.out
    operators = {n.domain for n in onnx.load("new/training_model.onnx").graph.node}
    assert operators <= {"", "ai.onnx"}
    result = run("export", "new", "-o", "out.onnx")
    assert result.code == 1
    assert "--outputs" in result.err
    value = onnx.load("new/eval_model.onnx").graph.node[0].output[0]
    result = run("export", "new", "-o", "out.onnx", "--outputs", value)
    assert result.code == 0, result.err
    assert [o.name for o in onnx.load("out.onnx").graph.output] == [value]


def test_convert_needs_a_folder(run):
    result = run("convert", "nowhere", "--output", "new")
    assert result.code == 1
    assert "nowhere" in result.err
    assert not Path("new").exists()


def test_bench(run):
    classifier()
    result = run("bench", "model.onnx", "--steps", "3", "--batch-size", "5", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["loss"] == "cross_entropy"
    assert found["times"]["onnxtrain, whole step"]["median_ms"] > 0
    assert {"Relu", "Gemm", "FusedGemm"} & {o["operator"] for o in found["operators"]}
    assert sum(o["share"] for o in found["operators"]) == pytest.approx(1)
    shown = run("bench", "model.onnx", "--steps", "3").out
    assert "Where the time goes" in shown


def test_a_profile_that_is_longer_than_the_step_is_explained():
    figures = {"operators": [{"ms_per_step": 0.06}, {"ms_per_step": 0.03}]}
    figures["times"] = {FORWARD_BACKWARD: {"median_ms": 0.02}}
    assert "takes 0.090 ms for these 0.020 ms" in profiler_note(figures)
    figures["times"] = {FORWARD_BACKWARD: {"median_ms": 0.08}}
    assert profiler_note(figures) == ""


def test_bench_leaves_out_the_first_steps(tmp_path):

    steps = 20
    slow = {0: 50_000, WARM_UP + 7: 9_000}  # the first, and one that the machine held up
    events = [
        {"cat": "Node", "name": f"{op}_kernel_time", "dur": dur, "args": {"op_name": op}}
        for i in range(WARM_UP + steps)
        for op, dur in (("Cast", slow.get(i, 10)), ("Mul", 30))
    ]
    (tmp_path / "p.json").write_text(json.dumps(events))
    rows = {r["operator"]: r for r in read_profile(tmp_path / "p.json", steps)}
    assert rows["Cast"]["ms_per_step"] == pytest.approx(0.01)
    assert rows["Mul"]["share"] == pytest.approx(0.75)


def test_bench_beside_torch(run):
    pytest.importorskip("torch", reason="torch is not installed")
    classifier()
    found = json.loads(run("bench", "model.onnx", "--steps", "2", "--json").out)
    assert found["torch"] == ""
    assert found["times"]["PyTorch, whole step"]["median_ms"] > 0


def test_profile_is_summed_by_operator(tmp_path):
    def event(name, op, duration):
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": duration,
                "args": {"op_name": op}}  # fmt: skip

    events = [event("a", "Add", 10), event("b", "Add", 20), event("c", "Mul", 10)] * (WARM_UP + 2)
    Path("p.json").write_text(json.dumps([{"cat": "Session", "name": "x"}, *events]))
    add, mul = read_profile(Path("p.json"), steps=2)
    assert add == {"operator": "Add", "nodes": 2, "ms_per_step": 0.03, "share": 0.75}
    assert mul["operator"] == "Mul"


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(run, loss):
    classifier()
    x, labels = blobs(12)
    kind = LOSSES[loss].kind
    one_hot = np.eye(3, dtype=np.float32)[labels]
    if kind == "token":  # rows of four tokens: tests/cli/test_language.py has models of text
        save(
            "g (float[N, 4, 3] x) => (float[N, 4, 3] scores) <float[3, 3] w = {1, 0, 2, 1, 1, 0, "
            "0, 1, 1}> { scores = MatMul(x, w) }"
        )
        x, labels = np.eye(3, dtype=np.float32)[labels.reshape(3, 4)], labels.reshape(3, 4)
    target = {
        "class": labels, "token": labels, "number": one_hot, "binary": one_hot,
        "sign": one_hot * 2 - 1,
    }[kind]  # fmt: skip
    if loss == "bce":  # takes probabilities
        model = onnx.load("model.onnx")
        model.graph.node[-1].output[0] = "raw"
        model.graph.node.append(onnx.helper.make_node("Sigmoid", ["raw"], ["scores"]))
        onnx.save(model, "model.onnx")
    np.savez("train.npz", x=x, y=target)
    result = run("train", "model.onnx", "--data", "train.npz", "--loss", loss, "--epochs", "4")
    assert result.code == 0, result.err
    losses = json.loads(Path("runs/model/history.json").read_text())["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("optimizer", optimizer_names())
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_every_optimizer_trains(run, optimizer, schedule):
    classifier()
    write_npz()
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--epochs", "3",
        "--optimizer", optimizer, "--schedule", schedule,
    )  # fmt: skip
    assert result.code == 0, result.err
    losses = json.loads(Path("runs/model/history.json").read_text())["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(run, schedule):
    classifier()
    write_npz()
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--epochs", "3",
        "--schedule", schedule, "--lr", "0.01",
    )  # fmt: skip
    assert result.code == 0, result.err
    rows = Path("runs/model/steps.csv").read_text().splitlines()[1:]
    rates = [float(r.split(",")[2]) for r in rows]
    assert max(rates) <= 0.01 + 1e-9
    constant = len(set(rates)) == 1
    assert constant == (schedule in {"constant", "plateau"})


@pytest.mark.parametrize(
    ("text", "how"),
    [(None, None), ("auto", "auto"), ("cheap", "cheap"), ("4", 4), ("a,b*", ["a", "b*"])],
)
def test_what_recompute_means(text, how):
    assert read_recompute(text) == how


def test_differentiate_recomputes(run):
    layers = "".join(f"h{i} = Tanh(x{i}) x{i + 1} = MatMul(h{i}, w{i}) " for i in range(4))
    shapes = ", ".join(f"float[256, 256] w{i}" for i in range(4))
    model = f"g (float[N, 256] x0, {shapes}) => (float loss)"
    save(model + "{" + layers + "loss = ReduceMean <keepdims = 0> (x4) }")
    result = run("differentiate", "model.onnx", "-o", "out.onnx", "--wrt", "w0", "--recompute", "2")
    assert result.code == 0, result.err
    assert any("_again" in n.name for n in onnx.load("out.onnx").graph.node)
    result = run("differentiate", "model.onnx", "-o", "out.onnx", "--wrt", "w0", "--recompute", "0")
    assert result.code != 0
    assert "recompute=0" in result.err


@pytest.mark.parametrize("command", ["train", "artifacts", "bench", "lora"])
def test_the_help_lists_all_optimizers(run, command):
    said = " ".join(run(command, "--help").out.split())
    assert f"One of {', '.join(optimizer_names())}." in said


@pytest.mark.parametrize("names", [LOSSES, SCHEDULES, METRICS])
def test_the_help_of_train_lists_all_names(run, names):
    said = " ".join(run("train", "--help").out.split())
    assert f"One of {', '.join(names)}" in said


def test_the_learning_rate_has_two_names(run):
    classifier()
    write_npz()
    Path("run.toml").write_text("learning-rate = 0.25\n")
    common = ("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy",
              "--epochs", "1")  # fmt: skip
    assert run(*common, "--learning-rate", "0.5", "--output", "a").code == 0
    assert run(*common, "--config", "run.toml", "--output", "b").code == 0
    rates = [json.loads(Path(d, "run.json").read_text())["settings"]["lr"] for d in "ab"]
    assert rates == [0.5, 0.25]


def test_the_target_that_was_taken_is_told(run):
    regressor("model.onnx")
    write_csv("t.csv", {"a": [1, 2], "b": [3, 4], "c": [5, 6], "price": [7, 8]})
    said = run("train", "model.onnx", "--data", "t.csv", "--loss", "mse", "--epochs", "1").err
    assert "the target is the column 'price'; --target chooses another" in said


def test_the_rate_that_is_told_was_used(run):
    """A cosine ends at zero, after the last step."""
    classifier()
    write_npz()
    result = run("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy",
                 "--schedule", "cosine", "--epochs", "2", "--output", "out")  # fmt: skip
    rates = [
        float(line.split(",")[2]) for line in Path("out/steps.csv").read_text().splitlines()[1:]
    ]
    assert rates[0] == pytest.approx(1e-3)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    last = [line for line in result.err.splitlines() if line.startswith("epoch 2/2")][-1]
    assert float(last.split("  lr ")[1].split()[0]) == pytest.approx(rates[-1], rel=1e-3)
    assert json.loads(Path("out/history.json").read_text())["lr"][-1] == rates[-1]


@pytest.mark.parametrize(("set_by_user", "expected"), [(None, "1"), ("0", "0")])
def test_onnxruntime_does_not_report_unless_asked(set_by_user: str | None, expected: str) -> None:
    name = "ORT_DISABLE_TELEMETRY"
    environment = {n: v for n, v in os.environ.items() if n != name}
    if set_by_user is not None:
        environment[name] = set_by_user
    script = (
        "import onnxtrain.cli, os, sys; assert 'onnxruntime' not in sys.modules;"
        f"print(os.environ['{name}'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == expected
