"""What stands behind the modules of ORTTrainer: descriptions, storage, sessions, types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnxtrain import compat  # noqa: E402
from onnxtrain.compat.ort.orttrainer import checkpoint, training_utils  # noqa: E402
from onnxtrain.compat.ort.orttrainer import checkpoint_storage as storage  # noqa: E402
from onnxtrain.compat.ort.orttrainer.model_desc_validation import (  # noqa: E402
    TrainerDescription,
)
from onnxtrain.compat.ort.orttrainer.state import StateMismatchError  # noqa: E402
from onnxtrain.errors import CheckpointError, InputError  # noqa: E402
from onnxtrain.torch import ORTTrainer, ORTTrainerOptions, optim  # noqa: E402

DESC = {
    "inputs": [("x", ["batch", 2]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("output", ["batch", 3])],
}


def trainer(config: Any = None, **options: Any) -> Any:
    return ORTTrainer(
        torch.nn.Linear(2, 3), {**DESC, "inputs": [("input", ["batch", 2]), DESC["inputs"][1]]},
        config or optim.AdamConfig(lr=0.1), loss_fn=torch.nn.functional.cross_entropy,
        options=ORTTrainerOptions({"exporter": "torchscript", **options}),
    )  # fmt: skip


X, Y = torch.ones(4, 2), torch.tensor([0, 1, 2, 0])


def test_the_aliases_are_the_modules_themselves() -> None:
    with compat.activated():
        from onnxruntime.training import _checkpoint_storage, _utils, model_desc_validation
        from onnxruntime.training import checkpoint as old

        assert _checkpoint_storage is storage
        assert _utils is training_utils
        assert old is checkpoint
        assert model_desc_validation.TrainerDescription is TrainerDescription


# --- descriptions ---------------------------------------------------------------------------------


def test_a_description_gets_its_types_with_the_first_batch() -> None:
    made = trainer(mixed_precision={"enabled": True})
    assert made.model_desc.outputs[0].is_loss
    made.train_step(X, Y)
    desc = made.model_desc
    assert [i.dtype for i in desc.inputs] == [torch.float32, torch.int64]
    assert desc.outputs[1] == ("output", ["batch", 3], False, torch.float32, None)
    assert desc.loss_scale_input is not None
    assert desc.all_finite is not None
    assert "learning rate" in repr(desc)


def test_only_types_can_be_added_to_a_description() -> None:
    with pytest.raises(InputError, match=r"torch\.dtype"):
        TrainerDescription(DESC).add_type_to_input_description(0, np.float32)  # type: ignore[arg-type]


# --- sessions and states --------------------------------------------------------------------------


@pytest.mark.parametrize("config", [optim.AdamConfig(lr=0.1), optim.LambConfig(lr=0.1)])
def test_the_session_has_what_training_changes(config: Any) -> None:
    made = trainer(config, utils={"frozen_weights": ["bias"]})
    assert made._training_session is None
    assert made._onnx_model is None
    made.train_step(X, Y)
    state = made._training_session.get_state()
    assert {"weight", "Moment_1_weight", "Moment_2_weight"} < state.keys()
    assert "bias" not in state
    assert "bias" in made.state_dict()["model"]["full_precision"]
    assert [i.name for i in made._onnx_model.graph.input] == ["input", "label"]


def test_the_model_is_that_of_the_last_save(tmp_path: Path) -> None:
    made = trainer()
    made.train_step(X, Y)
    first = made._onnx_model
    made.train_step(X, Y)
    assert made._onnx_model is first
    made.save_as_onnx(tmp_path / "m.onnx")
    made.train_step(X, Y)
    assert made._onnx_model == onnx.load(tmp_path / "m.onnx")
    assert made._onnx_model != first


def test_strict_loading_covers_the_optimizer() -> None:
    made = trainer()
    made.train_step(X, Y)
    state = made.state_dict()
    del state["optimizer"]["weight"]["Moment_2"]
    state["train_step_info"]["step"] = 7
    with pytest.raises(StateMismatchError, match=r"'optimizer/weight' are missing \['Moment_2'\]"):
        made.load_state_dict(state)
    assert made._train_step_info.step == 1, "nothing is taken over of a state that does not fit"
    made.load_state_dict(state, strict=False)
    assert made._train_step_info.step == 7
    del state["optimizer"]
    with pytest.warns(UserWarning, match="Missing key: optimizer in state_dict"):
        made.load_state_dict(state)


def test_a_state_that_does_not_fit_waits_no_longer() -> None:
    one, other = trainer(), trainer()
    one.train_step(X, Y)
    state = one.state_dict()
    bad = {**state, "model": {"full_precision": {"weight": np.zeros((2, 3), "f")}}}
    other.load_state_dict(bad)
    for _ in range(2):
        with pytest.raises(StateMismatchError):
            other.train_step(X, Y)
    other.load_state_dict(state)
    assert float(other.train_step(X, Y)[0]) == float(one.train_step(X, Y)[0])


def test_a_model_without_weights_computes_its_loss() -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: Any, unused: Any) -> Any:
            return x.mean()

    desc = {"inputs": [("x", [2]), ("unused", [1])], "outputs": [("loss", [], True)]}
    options = ORTTrainerOptions({"exporter": "torchscript"})
    made = ORTTrainer(Mean(), desc, optim.SGDConfig(), options=options)
    with pytest.warns(UserWarning, match="no weight to train"):
        loss = made.train_step(torch.tensor([1.0, 3.0]), torch.ones(1))
    assert float(loss) == 2.0


def test_a_graph_for_a_folder_is_named_after_its_option(tmp_path: Path) -> None:
    paths = {"model_with_gradient_graph_path": str(tmp_path)}
    trainer(debug={"graph_save_paths": paths}).train_step(X, Y)
    assert onnx.load(tmp_path / "model_with_gradient_graph.onnx").graph.node


# --- storage --------------------------------------------------------------------------------------


def test_a_state_is_stored_and_parts_are_read(tmp_path: Path) -> None:
    made = trainer()
    made.train_step(X, Y)
    state = made.state_dict()
    storage.save(state, tmp_path / "c")
    assert storage.load(tmp_path / "c", key="trainer_options/optimizer_name") == "AdamOptimizer"
    moment = storage.load(tmp_path / "c", key="optimizer/weight/Moment_1")
    np.testing.assert_array_equal(moment, state["optimizer"]["weight"]["Moment_1"])
    with pytest.raises(CheckpointError, match="no part 'model/half'"):
        storage.load(tmp_path / "c", key="model/half")
    with pytest.raises(InputError, match="a list"):
        storage.save([1], tmp_path / "c")  # type: ignore[arg-type]


USER = {"n": 1, "t": torch.arange(3), "a": np.ones((2, 1)), "deep": [{"flag": np.bool_(True)}]}


def test_what_a_user_adds_comes_back() -> None:
    again = storage.from_serialized_hex(storage.to_serialized_hex(USER))
    assert torch.equal(again["t"], torch.arange(3))
    assert again["a"].shape == (2, 1)
    assert (again["n"], again["deep"]) == (1, [{"flag": True}])
    with pytest.raises(InputError, match="a object is among them"):
        storage.to_serialized_hex({"o": object()})


@pytest.mark.parametrize(
    "text",
    ["zz", "5b5d", b'{"onnxtrain.array": ["O", [1], ""]}'.hex(),
     b'{"onnxtrain.array": ["<f4", [9], "AAAA"]}'.hex(), b'{"onnxtrain.tensor": 3}'.hex()],
)  # fmt: skip
def test_damaged_additions_are_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        storage.from_serialized_hex(text)


def part(rank: int, *, mixed: bool, moment: Any) -> dict[str, Any]:
    options = {"zero_stage": 1, "world_rank": rank, "world_size": 2, "mixed_precision": mixed}
    weight = np.arange(3.0) + 3 * rank if mixed else np.arange(6.0).reshape(2, 3)
    return {
        "model": {"full_precision": {"w": weight, "b": np.ones(2)}},
        "optimizer": {"w": {"Moment_1": np.asarray(moment), "Update_Count": np.array([4])}},
        "trainer_options": options,
        "train_step_info": {"optimization_step": 3, "step": 3},
        "partition_info": {"w": {"original_dim": [2, 3]}},
    }


@pytest.mark.parametrize("mixed", [False, True])
def test_parts_of_processes_are_put_together(tmp_path: Path, mixed: bool) -> None:
    for rank in (1, 0):
        storage.save(part(rank, mixed=mixed, moment=np.arange(3.0) * rank), tmp_path / str(rank))
    paths = [tmp_path / "1", tmp_path / "0"]
    state = checkpoint.aggregate_checkpoints(paths, pytorch_format=False)
    np.testing.assert_array_equal(
        state["model"]["full_precision"]["w"], np.arange(6.0).reshape(2, 3)
    )
    np.testing.assert_array_equal(state["optimizer"]["w"]["Moment_1"], [[0, 0, 0], [0, 1, 2]])
    assert state["trainer_options"]["world_size"] == 1
    assert torch.equal(checkpoint.aggregate_checkpoints(paths)["b"], torch.ones(2).double())


def test_parts_that_do_not_belong_together_are_refused() -> None:
    good = part(0, mixed=False, moment=np.zeros(3))
    other = part(1, mixed=False, moment=np.zeros(2))
    with pytest.raises(CheckpointError, match="5 numbers in all"):
        checkpoint.merge([good, other], divided=True)
    other = part(1, mixed=False, moment=np.zeros(3))
    other["model"]["full_precision"]["b"] = np.zeros(2)
    with pytest.raises(CheckpointError, match="'b' differs"):
        checkpoint.merge([good, other], divided=True)
    del other["partition_info"]
    with pytest.raises(CheckpointError, match="partition_info"):
        checkpoint.merge([good, other], divided=True)


# --- types ----------------------------------------------------------------------------------------


def test_types_and_devices() -> None:
    assert training_utils.dtype_onnx_to_torch(onnx.TensorProto.UINT8) == torch.uint8
    assert training_utils.dtype_onnx_to_torch("bool") == torch.bool
    assert training_utils.dtype_torch_to_numpy(torch.float16) is np.float16
    assert training_utils.get_device_str("cpu") == "cpu:0"
    assert training_utils.get_device_str(1) == "cuda:1"
    assert training_utils.get_device_index("cuda:1") == 1
    assert training_utils.get_device_index_from_input([X]) == 0
    with pytest.raises(AssertionError, match="999"):
        training_utils.dtype_onnx_to_torch(999)
    with pytest.raises(InputError, match="bfloat16"):
        training_utils.dtype_torch_to_numpy(torch.bfloat16)


def test_a_module_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "seven_of_a_file.py").write_text("SEVEN = 7\n")
    assert training_utils.import_module_from_file(tmp_path / "seven_of_a_file.py").SEVEN == 7
    with pytest.raises(AssertionError, match="nowhere"):
        training_utils.import_module_from_file(tmp_path / "nowhere.py")
