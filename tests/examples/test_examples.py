"""Every example runs as its README says, in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OURS = (
    "digits_from_scratch",
    "distillation",
    "fine_tune_head",
    "four_bit_digits",
    "half_precision",
    "language_model",
    "photo_transfer",
    "qlora",
    "sentence_embeddings",
    "tabular_regression",
    "text_classification",
    "time_series_lstm",
    "training_info",
    "two_output_loss",
)


def run(example: str, folder: Path, *arguments: str) -> str:
    """Run ``train.py`` as a user would, somewhere else; gives what it printed."""
    script = EXAMPLES / example / "train.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(pattern: str, text: str) -> float:
    """The number that a pattern captures."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found.group(1))


def exported(path: Path) -> onnxruntime.InferenceSession:
    """The trained model, which must be valid and load in a plain session."""
    onnx.checker.check_model(str(path), full_check=True)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_digits_from_scratch_reaches_97_percent(tmp_path):
    printed = run("digits_from_scratch", tmp_path, "--epochs", "12")
    assert number(r"new images: ([\d.]+)", printed) >= 0.97
    session = exported(tmp_path / "digits" / "trained.onnx")
    assert [i.name for i in session.get_inputs()] == ["image"]
    ops = {n.op_type for n in onnx.load(tmp_path / "digits" / "trained.onnx").graph.node}
    assert "Dropout" not in ops


def test_photo_transfer_learns_new_shapes(tmp_path):
    pytest.importorskip("PIL")
    printed = run("photo_transfer", tmp_path, "--quick")
    assert number(r"arrow: ([\d.]+)", printed) > 0.8  # by chance: 0.33
    session = exported(tmp_path / "photo_transfer" / "run" / "model.onnx")
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert names == ["arrow", "diamond", "ring"]


def test_four_bit_digits_learn_with_the_rounding(tmp_path):
    printed = run("four_bit_digits", tmp_path, "--quick")
    right = {n: number(rf"{n}.onnx: ([\d.]+)", printed) for n in ("floats", "static", "learned")}
    assert right["floats"] > 0.9
    assert right["learned"] > right["floats"] - 0.03
    sizes = {p.stem: p.stat().st_size for p in (tmp_path / "four_bits").glob("*.onnx")}
    assert sizes["learned"] < sizes["floats"] / 5
    exported(tmp_path / "four_bits" / "learned.onnx")


def test_qlora_keeps_the_base_in_four_bits(tmp_path):
    pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    printed = run("qlora", tmp_path, "--quick")
    for base in ("floats", "4_bits"):
        before = number(rf"{base}: .* source: ([\d.]+)", printed)
        assert number(rf"{base}: .* source: [\d.]+ → ([\d.]+)", printed) < 0.9 * before
    sizes = [number(rf"{base}: ([\d.]+) MB", printed) for base in ("floats", "4_bits")]
    assert sizes[1] < sizes[0] / 4  # tables of letters and places are floats
    assert "the same file as before: True" in printed
    assert number(r"merged model: ([\d.e-]+) apart", printed) < 1e-4
    assert "PyTorch was imported: False" in printed
    exported(tmp_path / "qlora" / "adapted_4_bits" / "merged.onnx")
    training = onnx.load(tmp_path / "qlora" / "adapted_4_bits" / "training_model.onnx")
    codes = [t for t in training.graph.initializer if t.data_type == onnx.TensorProto.UINT4]
    assert sum(np.prod(t.dims) for t in codes) >= 12 * 512 * 512  # all of a layer


def test_training_info_trains_as_the_file_says(tmp_path):
    printed = run("training_info", tmp_path, "--quick")
    assert number(r"new images right: ([\d.]+)", printed) > 0.93
    assert "the same to the bit: True" in printed
    assert "of these Gradient, Adagrad" in printed
    assert number(r"; ([\d.e-]+) from numpy's", printed) < 1e-5
    assert "onnxruntime alone: [ONNXRuntimeError]" in printed
    assert "7 outputs, ai.onnx\n" in printed  # no other domain
    described = onnx.load(tmp_path / "described" / "epoch_3.onnx")
    assert len(described.training_info) == 1


def test_half_precision_takes_fewer_bytes_for_the_same_curve(tmp_path):
    printed = run("half_precision", tmp_path, "--quick")
    kinds = ("float32", "float16", "int8")
    sizes = [number(rf"moments in {kind}: ([\d.]+) MB", printed) for kind in kinds]
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.05)
    assert sizes[0] == pytest.approx(4 * sizes[2], rel=0.1)
    ends = [number(rf"moments in {kind}: .* ([\d.]+); [\d.]+ of", printed) for kind in kinds]
    np.testing.assert_allclose(ends[1:], ends[0], rtol=0.03)
    kinds = ("float32", "float16", "bfloat16")
    files = [number(rf"frozen weights in {kind}: file ([\d.]+)", printed) for kind in kinds]
    assert files[1] == files[2] == pytest.approx(files[0] / 2, rel=0.05)
    right = [number(rf"frozen weights in {kind}: .* → ([\d.]+)", printed) for kind in kinds]
    assert min(right) > 0.85  # by chance: 0.1
    np.testing.assert_allclose(right[1:], right[0], atol=0.02)
    half = number(r"products in float16: loss ([\d.]+)", printed)
    assert half == pytest.approx(number(r"\(float32: ([\d.]+)", printed), rel=0.03)
    assert "PyTorch was imported: False" in printed


def test_distillation_teaches_what_labels_do_not(tmp_path):
    printed = run("distillation", tmp_path, "--quick")
    few = number(r"student from 100 labels: ([\d.]+)", printed)
    assert number(r"student from the teacher, no labels: ([\d.]+)", printed) > few + 0.03
    assert number(r"labels alone: ([\d.]+) of the 3s", printed) == 0
    assert number(r"temperature 16: ([\d.]+) of the 3s", printed) > 0.2
    assert "PyTorch was imported: False" in printed
    session = exported(tmp_path / "distilled" / "taught" / "trained.onnx")
    assert [i.name for i in session.get_inputs()] == ["image"]
    student = onnx.load(tmp_path / "distilled" / "taught" / "trained.onnx")
    assert sum(np.prod(t.dims) for t in student.graph.initializer) == 910  # and no teacher


def test_fine_tune_head_moves_nothing_else(tmp_path):
    printed = run("fine_tune_head", tmp_path, "--quick")
    assert number(r"new classes: ([\d.]+)", printed) > 0.85  # by chance: 0.2
    assert number(r"numbers; (\d+) of them changed", printed) == 0
    assert number(r"moved by up to ([\d.]+)", printed) > 0.01
    # No gradient work is spent on what is frozen: only the forward half knows of convolutions.
    training = onnx.load(tmp_path / "fine_tuned" / "training_model.onnx")
    ops = [n.op_type for n in training.graph.node]
    assert ops.count("Conv") == 2
    assert not {"ConvTranspose", "MaxUnpool", "Pad", "Resize"} & set(ops)


def test_fine_tune_head_of_a_model_given_by_path(tmp_path):
    """A model whose last layer is MatMul + Add + Softmax, as real classifiers have it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 15]>
        g (float[n, 4] x) => (float[n, 3] p) {
            a = MatMul (x, w1) b = Tanh (a) c = MatMul (b, w2) d = Add (c, b2) p = Softmax (d)
        }
    """)
    rng = np.random.default_rng(0)
    for name, shape in {"w1": (4, 32), "w2": (32, 3), "b2": (3,)}.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "my.onnx")
    x = rng.normal(size=(200, 4)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=(x[:, 0] + x[:, 1] > 0))
    printed = run("fine_tune_head", tmp_path, "--model", "my.onnx", "--data", "mine.npz")
    assert number(r"2 new classes: ([\d.]+)", printed) > 0.8
    assert number(r"numbers; (\d+) of them changed", printed) == 0
    kept = {t.name for t in onnx.load(tmp_path / "fine_tuned" / "trained.onnx").graph.initializer}
    assert kept == {"w1", "w2.weight", "w2.bias"}


def test_tabular_regression_keeps_up_with_scikit_learn(tmp_path):
    printed = run("tabular_regression", tmp_path, "--quick")
    ours = number(r"new patients: ([\d.]+)", printed)
    theirs = number(r"LinearRegression ([\d.]+)", printed)
    assert ours > theirs - 0.05
    exported(tmp_path / "diabetes" / "trained.onnx")


def test_text_classification_beats_guessing(tmp_path):
    printed = run("text_classification", tmp_path, "--quick")
    commonest = number(r"commonest: ([\d.]+)", printed)
    assert number(r"new texts: ([\d.]+)", printed) > commonest + 0.2


def test_text_classification_of_a_csv_file(tmp_path):
    rows = ["text,label"]
    for i in range(120):
        rows += [f"the red apple number{i} is sweet,fruit", f"a fast car with wheel {i},vehicle"]
    (tmp_path / "mine.csv").write_text("\n".join(rows), encoding="utf-8")
    printed = run("text_classification", tmp_path, "--data", "mine.csv", "--epochs", "10")
    assert number(r"new texts: ([\d.]+)", printed) == 1.0


def test_time_series_lstm_beats_repeating_the_last_value(tmp_path):
    printed = run("time_series_lstm", tmp_path, "--quick")
    ours = number(r"unseen steps: ([\d.]+)", printed)
    assert ours < 0.6 * number(r"newest value: ([\d.]+)", printed)
    session = exported(tmp_path / "forecaster" / "trained.onnx")
    for length in (5, 60):  # the window may have any length
        (result,) = session.run(None, {"x": np.zeros((2, length, 1), np.float32)})
        assert result.shape == (2, 1)


def test_two_output_loss_trains_both_outputs(tmp_path):
    printed = run("two_output_loss", tmp_path, "--quick")
    for name in ("weighted loss", "mse of output1", "mse of output2"):
        before = number(name + r": ([\d.]+)", printed)
        assert number(name + r": [\d.]+ → ([\d.]+)", printed) < 0.2 * before


def test_language_model_learns_and_takes_on_a_style(tmp_path):
    pytest.importorskip("tokenizers")
    printed = run("language_model", tmp_path, "--quick")
    for text in ("new text", "unseen log entries"):
        before = number(rf"perplexity of {text}: ([\d.]+)", printed)
        assert number(rf"perplexity of {text}: [\d.]+ → ([\d.]+)", printed) < 0.75 * before
    assert "PyTorch was imported: False" in printed
    base, style = (exported(tmp_path / "gpt" / f"{n}.onnx") for n in ("trained", "logbook"))
    ids = np.arange(12)[None]
    scores = [s.run(None, {"input_ids": ids})[0] for s in (base, style)]
    assert np.abs(scores[0] - scores[1]).max() > 0.1
    assert (tmp_path / "gpt" / "adapter" / "adapter_model.safetensors").is_file()


def test_sentence_embeddings_rank_pairs_as_people_do(tmp_path):
    pytest.importorskip("tokenizers")
    printed = run("sentence_embeddings", tmp_path, "--quick")
    assert number(r"32 numbers per sentence: ([-\d.]+)", printed) < 0.3
    assert number(r"32 numbers per sentence: [-\d.]+ → ([\d.]+)", printed) > 0.8
    assert number(r"first 8 of them: [-\d.]+ → ([\d.]+)", printed) > 0.7
    session = exported(tmp_path / "encoder" / "sentence_encoder.onnx")
    ids = np.array([[2, 3, 4]])
    (vector,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_notebook_runs(tmp_path, monkeypatch):
    path = EXAMPLES / "notebook" / "getting_started.ipynb"
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    try:
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError:
        scope: dict = {"__name__": "__main__"}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), str(path), "exec"), scope)
        assert scope["accuracy"] >= 0.95
    else:
        node = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(node, timeout=300, kernel_name="python3").execute()
    assert (tmp_path / "getting_started" / "trained.onnx").is_file()


def test_notebook_is_committed_without_output():
    path = EXAMPLES / "notebook" / "getting_started.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert code
    assert all(not c["outputs"] and c["execution_count"] is None for c in code)


@pytest.mark.parametrize("example", [*OURS, "notebook"])
def test_readme_names_the_command_and_no_machine(example):
    readme = (EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    assert "python train.py" in readme or "getting_started.ipynb" in readme
    for file in (EXAMPLES / example).iterdir():
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"/(home|work|root|Users|tmp)/", text), file
