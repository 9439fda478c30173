"""docs/moving.md, "What differs on purpose": every row has a test that shows it."""

# ruff: noqa: E501 (a row of a table is a line)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts
from onnxtrain.compat.ort.old_artifacts import OldArtifactError, convert_training_model
from onnxtrain.errors import StateError
from onnxtrain.sklearn import (
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
)
from tests.sklearn.models import linear, mlp, regression

from .test_moving import rows

TESTS = Path(__file__).parents[1]
HERE = "compat/test_differences.py"
DEFECTS = "sklearn/test_defects.py"

ORT = {
    "`LinearLRScheduler(": "runtime/test_schedulers.py::test_linear_has_warm_up_and_total_in_the_documented_order",
    "after loading a checkpoint the learning rate": "runtime/test_optimizer.py::test_learning_rate_and_step_come_back",
    "`generate_artifacts` without": "artifacts/test_generate.py::test_by_default_what_differentiate_would_train_is_trained",
    "BatchNormalization in inference mode": "onnxblock/test_training.py::test_modes_of_batch_norm",
    "the eval model of a BatchNormalization": "compat/test_old_artifacts.py::test_eval_model_that_did_not_load_is_repaired",
    "setting a parameter before": f"{HERE}::test_state_without_a_module_and_a_module_without_eval_model",
    '`reduction="none"`': "onnxblock/test_losses.py::test_values_equal_torch",
    "`BCEWithLogitsLoss` overflowed": "onnxblock/test_losses.py::test_extreme_logits_stay_finite",
    "`repr` of Parameters": "runtime/test_state.py::test_properties",
    "`<p>_grad.accumulation.out` was": "onnxblock/test_training.py::test_training_block",
    "`training_model.onnx` took": "artifacts/test_generate.py::test_inputs_and_outputs_say_what_is_run",
    "`optimizer_model.onnx` took": "artifacts/test_generate.py::test_inputs_and_outputs_say_what_is_run",
    "`.ort` files": "artifacts/test_ort_format.py::test_both_formats_train_the_same",
    "clipping changed": f"{HERE}::test_clipping_leaves_the_gradients_of_parameters_alone",
    "training models kept the opset": "artifacts/test_opset.py::test_the_opset_of_the_model_is_kept_and_trains_the_same",
    "a Dropout switched off": "compat/test_ops.py::test_dropout_that_is_off_has_gradient_one",
    "gradient of Where": f"{HERE}::test_a_gradient_of_where_with_another_shape_is_refused",
    "Max and Min divided": "compat/test_ops.py::test_same_as_the_kernel",
    "checkpoints were FlatBuffers": "runtime/test_checkpoint.py::test_odtc_round_trip",
    "`ORTTrainer.save_checkpoint`": "torch/test_trainer_v2.py::test_hdf5_checkpoints_are_read",
    "`ORTTrainer.save_as_onnx`": "torch/test_trainer_v1.py::test_save_as_onnx",
    "ORTTrainer's graphs": f"{HERE}::test_the_graphs_of_ort_trainer_have_standard_operators",
    "mixed precision of ORTTrainer": "torch/test_trainer_v2.py::test_mixed_precision_skips_infinite_gradients",
    "horizontal and pipeline": "compat/ort/test_sample.py::test_what_is_not_divided_is_refused_in_a_sentence",
    "a user's input that ends in": f"{HERE}::test_an_input_may_be_called_like_a_gradient",
}  # fmt: skip
CUSTOM = {
    "the gradient of the absolute loss": f"{DEFECTS}::test_1_the_gradient_of_a_loss_is_its_slope",
    "`warm_start=True`": f"{DEFECTS}::test_2_warm_start_goes_on",
    "a pickle lost": f"{DEFECTS}::test_3_pickling_in_the_middle_changes_nothing",
    "`losses()` and `score()`": f"{DEFECTS}::test_4_losses_are_in_the_order_of_the_rows",
    "`OrtDataLoader` drew": f"{DEFECTS}::test_5_every_pass_sees_every_row_once_in_any_order_and_shape",
    "the penalty was not": f"{DEFECTS}::test_6_the_learning_rate_applies_to_the_penalty",
    '`select("LearningRateSGD")`': f"{DEFECTS}::test_7_select_takes_aliases_and_class_names",
    "`onnx_derivative(inputs": f"{DEFECTS}::test_8_the_inputs_that_are_asked_for_are_differentiated",
    "`validation_every`": f"{DEFECTS}::test_9_validation_with_few_iterations_and_with_weights",
    "weights had to be named": f"{DEFECTS}::test_names_and_order_of_weights_are_free",
    "`fit` of the forward-backward": f"{HERE}::test_fit_begins_with_the_weights_of_the_model_or_those_that_are_set",
    "`OrtGradientOptimizer` refused momentum": "sklearn/test_trajectories.py::test_the_two_apis_and_torch_take_the_same_steps",
    "a diverging loss": f"{HERE}::test_a_diverging_loss_leaves_the_weights_before_it",
    "`trained_coef_`": "compat/onnxcustom/test_contract.py::test_the_second_api_gives_its_state_as_a_list_of_values",
    "no predict, one output": f"{DEFECTS}::test_10_predict_several_outputs_several_classes_adam_and_files",
}  # fmt: skip


@pytest.mark.parametrize(
    ("predecessor", "table"), [("onnxruntime-training", ORT), ("onnxcustom", CUSTOM)]
)
def test_every_row_names_a_test(predecessor: str, table: dict[str, str]) -> None:
    documented = [there for there, _ in rows(f"## What differs on purpose: {predecessor}")]
    for start in table:
        assert sum(there.startswith(start) for there in documented) == 1, start
    assert len(documented) == len(table)


@pytest.mark.parametrize("test", sorted({*ORT.values(), *CUSTOM.values()}))
def test_the_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE)


# --- rows that no other file shows ----------------------------------------------------------------

X, Y = regression(24)


def artifacts(folder: Path, **options: Any) -> tuple[CheckpointState, Module]:
    model, _ = mlp(features=3)
    arguments: dict[str, Any] = {"loss": LossType.MSELoss, "optimizer": OptimType.SGD}
    generate_artifacts(model, artifact_directory=folder, **{**arguments, **options})
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return state, Module(folder / "training_model.onnx", state)


def test_state_without_a_module_and_a_module_without_eval_model(tmp_path: Path) -> None:
    artifacts(tmp_path)
    alone = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    alone.parameters["bias"] = np.ones(8, np.float32)
    module = Module(tmp_path / "training_model.onnx", alone)
    assert module.get_contiguous_parameters().numpy().size == 3 * 8 + 8 + 8
    np.testing.assert_array_equal(alone.parameters["bias"].data, 1)
    module.eval()
    with pytest.raises(StateError, match="Give eval_model_uri"):
        module(X, Y[:, None])


def test_clipping_leaves_the_gradients_of_parameters_alone(tmp_path: Path) -> None:
    state, module = artifacts(tmp_path)
    before = {name: p.data.copy() for name, p in state.parameters}
    clipped = Optimizer(tmp_path / "optimizer_model.onnx", module)
    clipped.clip_norm = 1e-3
    clipped.set_learning_rate(1.0)
    module(X, Y[:, None])
    gradients = {name: np.array(p.grad) for name, p in state.parameters}
    clipped.step()
    norm = np.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    assert norm > 1
    for name, p in state.parameters:
        np.testing.assert_array_equal(p.grad, gradients[name])
        expected = before[name] - gradients[name] * (1e-3 / norm)
        np.testing.assert_allclose(p.data, expected, atol=1e-6)


WHERE = """<ir_version: 8, opset_import: ["": 15, "com.microsoft": 1]>
g (float[2,3] x, bool[2,3] c, float[3] w, float[3] buffer, bool[1] lazy_reset_grad)
    => (float loss, bool[1] out) <float[1] zero = {0.0}> {
    y = Where(c, w, x)  loss = ReduceSum<keepdims=0>(y)
    s = Shape(y)  dy = ConstantOfShape<value = float[1] {1.0}>(s)
    w_grad = Where(c, dy, zero)
    out = com.microsoft.InPlaceAccumulatorV2(buffer, w_grad, lazy_reset_grad)
}"""


def test_a_gradient_of_where_with_another_shape_is_refused() -> None:
    text = re.sub(r"\b(buffer|out)\b", r"w_grad_accumulation_\1", WHERE)
    model = onnx.parser.parse_model(text)
    renamed = {f"w_grad_accumulation_{n}": f"w_grad.accumulation.{n}" for n in ("buffer", "out")}
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed.get(value.name, value.name)
    for names in (model.graph.node[-1].input, model.graph.node[-1].output):
        names[:] = [renamed.get(n, n) for n in names]
    with pytest.raises(OldArtifactError, match=r"broadcast Where did\. Generate the artifacts"):
        convert_training_model(model)


def test_the_graphs_of_ort_trainer_have_standard_operators(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from onnxtrain.torch import ORTTrainer, ORTTrainerOptions, optim

    path = tmp_path / "training.onnx"
    described = {
        "inputs": [("input", [4, 3]), ("y", [4])],
        "outputs": [("loss", [], True), ("out", [4, 2])],
    }
    options = ORTTrainerOptions(
        {"debug": {"graph_save_paths": {"model_with_training_graph_path": str(path)}}}
    )
    trainer = ORTTrainer(
        torch.nn.Linear(3, 2), described, optim.AdamConfig(),
        lambda out, y: torch.nn.functional.cross_entropy(out, y), options,
    )  # fmt: skip
    trainer.train_step(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    nodes = onnx.load(path).graph.node
    assert len(nodes) > 5
    assert {n.domain for n in nodes} == {""}


def test_an_input_may_be_called_like_a_gradient(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[N,3] x_grad) => (float[N,1] out) { out = MatMul(x_grad, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w"))
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert module.input_names() == ["x_grad", "target"]
    module(X, Y[:, None])
    expected = 2 * X.T @ (X.sum(1, keepdims=True) - Y[:, None]) / len(X)
    np.testing.assert_allclose(state.parameters["w"].grad, expected, rtol=1e-4)


def test_fit_begins_with_the_weights_of_the_model_or_those_that_are_set() -> None:
    model, start = mlp(features=3)
    frozen = {"learning_rate": 1e-30, "max_iter": 1}
    plain = OrtGradientForwardBackwardOptimizer(model, **frozen).fit(X, Y)
    for name, value in start.items():
        np.testing.assert_array_equal(plain.trained_coef_[name], value)
    moved = OrtGradientForwardBackwardOptimizer(model, warm_start=True, **frozen).fit(X, Y)
    moved.set_state([value.numpy() + 1 for value in moved.get_state()])
    moved.fit(X, Y)
    for name, value in start.items():
        np.testing.assert_array_equal(moved.trained_coef_[name], value + 1)


def test_a_diverging_loss_leaves_the_weights_before_it() -> None:
    model = add_loss_output(linear())
    diverging = OrtGradientOptimizer(model, ["zeta", "alpha"], learning_rate=1e9, max_iter=50)
    with pytest.raises(Exception, match="loss"):
        diverging.fit(X, Y)
    assert not np.isfinite(diverging.train_losses_[-1])
    assert all(np.isfinite(v).all() for v in diverging.get_state().values())
