"""The private names of the predecessor's ORTModule that scripts looked at, with things behind."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain import compat  # noqa: E402
from onnxtrain.autodiff import registry  # noqa: E402
from onnxtrain.torch import DebugOptions, LogLevel  # noqa: E402
from onnxtrain.torch import ORTModule as Current  # noqa: E402
from onnxtrain.torch.fallback import ORTModuleONNXModelException  # noqa: E402

TS = "torchscript"


@pytest.fixture
def old() -> Iterator[Any]:
    with compat.activated():
        from onnxruntime.training import ortmodule

        yield ortmodule


class Switch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.twice = False

    def forward(self, rows: torch.Tensor, extra: Any = None) -> torch.Tensor:
        y = self.fc(rows) if extra is None else self.fc(rows) + extra
        return y * 2 if self.twice else y


def manager(module: Any) -> Any:
    return module._torch_module._execution_manager(module._is_training())


def test_the_old_class_is_the_new_one_with_more_names(old: Any) -> None:
    module = old.ORTModule(Switch(), exporter=TS)
    assert isinstance(module, Current)
    assert module._is_training()
    assert module._torch_module.is_training()
    assert module._torch_module._flattened_module is module.module
    module.eval()
    assert not module._torch_module.is_training()
    managers = module._torch_module._execution_manager
    assert managers(True) is managers._training_manager
    assert managers(False) is managers._inference_manager


def test_a_manager_shows_what_the_last_call_used(old: Any) -> None:
    module = old.ORTModule(Switch(), exporter=TS)
    assert manager(module)._onnx_models.optimized_model is None
    module(torch.ones(4, 3))
    plain = manager(module)
    first, graphs = plain._onnx_models.exported_model, plain._graph_builder
    info = plain._graph_transition_manager._exported_model_info
    assert info.onnx_graph_input_names == ("rows",)
    assert info.onnx_graph_input_names_require_grad == []
    onnx.checker.check_model(plain._onnx_models.optimized_model)
    assert "fc.weight_grad" in {o.name for o in plain._onnx_models.optimized_model.graph.output}
    schema = repr(info.module_forward_args_schema)

    module(torch.ones(4, 3, requires_grad=True), extra=torch.ones(2))
    info = manager(module)._graph_transition_manager._model_info_for_export
    assert info.onnx_graph_input_names_require_grad == ["rows"]
    assert repr(info.module_forward_kwargs_schema) != repr(())
    assert manager(module)._onnx_models.exported_model is not first
    assert manager(module)._graph_builder is not graphs

    module(torch.ones(4, 3))  # found in the cache, and shown again
    info = manager(module)._graph_transition_manager._exported_model_info
    assert repr(info.module_forward_args_schema) == schema
    assert manager(module)._graph_builder is graphs
    assert manager(module)._device == torch.device("cpu")
    assert manager(module)._fallback_manager.policy == old.ORTMODULE_FALLBACK_POLICY


def test_a_changed_attribute_is_seen_until_the_next_call(old: Any) -> None:
    module = old.ORTModule(Switch(), exporter=TS)
    module(torch.ones(1, 3))
    transition = manager(module)._graph_transition_manager
    assert transition._original_model_has_changed is False
    module.twice = True
    assert transition._original_model_has_changed is True
    module(torch.ones(1, 3))
    assert transition._original_model_has_changed is False
    manager(module)._onnx_model = None
    assert manager(module)._onnx_model is None
    with pytest.raises(ValueError, match="None only"):
        manager(module)._onnx_model = onnx.ModelProto()


def test_arguments_of_the_exporter_are_passed_on_or_refused(old: Any) -> None:
    module = old.ORTModule(Switch(), exporter=TS)
    transition = manager(module)._graph_transition_manager
    transition._export_extra_kwargs = {"verbose": False}
    with pytest.raises(ORTModuleONNXModelException, match="'verbose'"):
        module(torch.ones(1, 3))
    transition._export_extra_kwargs = {"no_such_option": 1}
    with pytest.raises(NotImplementedError, match="no_such_option"):
        module(torch.ones(1, 3))
    transition._export_extra_kwargs = {"custom_opsets": None}
    assert module(torch.ones(1, 3)).shape == (1, 2)


def test_the_name_inside_can_be_taken_by_the_user(
    old: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = Switch()
    module = old.ORTModule(wrapped, exporter=TS)
    module._torch_module = 3
    assert module._torch_module == 3
    assert not hasattr(wrapped, "_torch_module")
    wrapped._torch_module = 4
    with caplog.at_level(logging.WARNING):
        old.ORTModule(wrapped)
    assert "_torch_module collides" in caplog.text


def test_debug_options_tell_where_files_are(old: Any, tmp_path: Path) -> None:
    from onnxruntime.training.ortmodule._onnx_models import _get_onnx_file_name

    options = DebugOptions(LogLevel.ERROR, save_onnx=True, onnx_prefix="m", save_path=tmp_path)
    module = old.ORTModule(Switch(), options, exporter=TS)
    module(torch.ones(1, 3))
    inside = manager(module)
    assert inside._debug_options.logging.log_level is LogLevel.ERROR
    saved = inside._debug_options.save_onnx_models
    name = _get_onnx_file_name(saved.name_prefix, "execution_model", inside._export_mode)
    onnx.checker.check_model(onnx.load(saved.path / name))


def test_a_gradient_can_be_registered_as_nodes(old: Any) -> None:
    from onnxruntime.training.ortmodule._custom_gradient_registry import register_gradient

    class Cosine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cos(x)

    known = registry.lookup("", "Cos")
    assert known is not None
    try:

        @register_gradient("", "Cos")
        def cosine() -> list[Any]:  # twice the true one, to see that this one is used
            value = {"value": {"value": -2.0, "dtype": "float", "is_tensor": True}}
            return [
                ("Constant", [], ["c"], value),
                ("Sin", ["I(0)"], ["s"]),
                ("Mul", ["s", "GO(0)"], ["p"]),
                ("Mul", ["p", "c"], ["GI(0)"]),
            ]

        x = torch.tensor([0.5], requires_grad=True)
        old.ORTModule(Cosine(), exporter=TS)(x).sum().backward()
        torch.testing.assert_close(x.grad, -2 * torch.sin(x.detach()))
    finally:
        registry.register(
            ["Cos"], known.function, kind=known.kind, domain="", stops=known.stops, replace=True
        )


def test_random_states_are_taken_and_put_back(old: Any) -> None:
    from onnxruntime.training.ortmodule import _utils

    states = _utils.get_random_states()
    drawn = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    _utils.set_random_states(states)
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    assert _utils.get_device_index("cuda:1") == 1
    assert _utils.get_device_str(torch.device("cpu", 0)) == "cpu"


def test_types_and_variables(old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxruntime.training.utils import onnx_dtype_to_pytorch_dtype, pytorch_type_to_onnx_dtype

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        assert onnx_dtype_to_pytorch_dtype(pytorch_type_to_onnx_dtype(dtype)) is dtype
    with pytest.raises(ValueError, match="quint8"):
        pytorch_type_to_onnx_dtype(torch.quint8)
    monkeypatch.setitem(os.environ, "SOME_NUMBER", "15")
    assert old._defined_from_envvar("SOME_NUMBER", 14) == 15
    monkeypatch.setitem(os.environ, "SOME_NUMBER", "15j")
    with pytest.warns(UserWarning, match="Unable to overwrite constant"):
        assert old._defined_from_envvar("SOME_NUMBER", 14) == 14
