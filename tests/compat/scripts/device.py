"""onnxruntime.training.api: training on the device. `state`, `model`, `optimizer` are there."""

SCRIPTS = {
    "training_loop": """
model.train()
losses = []
for epoch in range(30):
    loss = model(x, y)
    optimizer.step()
    model.lazy_reset_grad()
    losses.append(float(loss))
assert losses[-1] < losses[0]
model.eval()
assert np.isclose(model(x, y), losses[-1], rtol=0.2)
CheckpointState.save_checkpoint(state, "after")
model.export_model_for_inferencing("inference.onnx", ["output"])
import onnxruntime
session = onnxruntime.InferenceSession("inference.onnx")
assert session.run(["output"], {"x": x})[0].shape == (8, 3)
""",
    "submodules": """
from onnxruntime.training.api.module import Module as M
from onnxruntime.training.api.optimizer import Optimizer as O
from onnxruntime.training.api.checkpoint_state import CheckpointState as C, Parameter
from onnxruntime.training.api.lr_scheduler import LinearLRScheduler as L
assert M is Module and O is Optimizer and C is CheckpointState and L is LinearLRScheduler
assert isinstance(state.parameters["weight1"], Parameter)
""",
    "learning_rate": """
assert np.isclose(optimizer.get_learning_rate(), 0.001)
optimizer.set_learning_rate(0.5)
assert np.isclose(optimizer.get_learning_rate(), 0.5)
scheduler = LinearLRScheduler(optimizer, 1, 2, 0.2)
assert np.isclose(optimizer.get_learning_rate(), 0.0)
model(x, y); optimizer.step(); scheduler.step()
assert not np.isclose(optimizer.get_learning_rate(), 0.0)
""",
    "parameters": """
names = [name for name, parameter in state.parameters]
assert names == sorted(PARAMETERS) and len(state.parameters) == 4
assert "weight1" in state.parameters and "nothing" not in state.parameters
parameter = state.parameters["weight1"]
assert parameter.name == "weight1" and parameter.requires_grad
assert parameter.grad.shape == parameter.data.shape and not parameter.grad.any()
parameter.data = np.ones((4, 6), np.float32)
state.parameters["bias1"] = np.zeros(6, np.float32)
assert (state.parameters["weight1"].data == 1).all()
try:
    state.parameters["nothing"]
except KeyError as error:
    assert "not found" in str(error)
else:
    raise AssertionError
""",
    "properties": """
state.properties["epoch"] = 3
state.properties["best"] = 0.5
state.properties["name"] = "run"
assert "epoch" in state.properties and len(state.properties) == 3
CheckpointState.save_checkpoint(state, "with_properties")
again = CheckpointState.load_checkpoint("with_properties")
assert dict(again.properties) == {"best": 0.5, "epoch": 3, "name": "run"}
""",
    "state_indexing": """
state["epoch"] = 3
assert state["epoch"] == 3 and "epoch" in state
""",
    "resume": """
for _ in range(3):
    model(x, y); optimizer.step(); model.lazy_reset_grad()
CheckpointState.save_checkpoint(state, "resume", include_optimizer_state=True)
expected = float(model(x, y))
again = CheckpointState.load_checkpoint("resume")
module = Module("training_model.onnx", again, "eval_model.onnx")
Optimizer("optimizer_model.onnx", module)
assert np.isclose(float(module(x, y)), expected)
""",
    "accumulation": """
model(x, y)
once = state.parameters["weight1"].grad.copy()
model(x, y)
assert np.allclose(state.parameters["weight1"].grad, 2 * once, rtol=1e-4)
model.lazy_reset_grad()
model(x, y)
assert np.allclose(state.parameters["weight1"].grad, once, rtol=1e-4)
""",
    "contiguous_parameters": """
import onnxruntime
from onnxruntime.capi import _pybind_state as C
assert model.get_parameters_size() == 4 * 6 + 6 + 6 * 3 + 3
buffer = model.get_contiguous_parameters()
assert isinstance(buffer, C.OrtValue)
values = buffer.numpy() * 0 + 1
model.copy_buffer_to_parameters(C.OrtValue.ortvalue_from_numpy(values, C.OrtDevice(
    C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)))
assert (state.parameters["weight2"].data == 1).all()
""",
    "nominal_checkpoint": """
import onnxruntime
from onnxruntime.capi import _pybind_state as C
values = model.get_contiguous_parameters(trainable_only=False)
nominal = CheckpointState.load_checkpoint("nominal_checkpoint")
fresh = Module("training_model.onnx", nominal, "eval_model.onnx")
stepper = Optimizer("optimizer_model.onnx", fresh)
assert fresh.get_parameters_size() == model.get_parameters_size()
try:
    fresh(x, y)
except RuntimeError as error:
    assert "Please load the model parameters first" in str(error)
else:
    raise AssertionError
fresh.copy_buffer_to_parameters(values, trainable_only=False)
assert np.isclose(fresh(x, y), model(x, y))
""",
    "ortvalues": """
from onnxruntime import OrtValue
loss = model(OrtValue.ortvalue_from_numpy(x), OrtValue.ortvalue_from_numpy(y))
assert isinstance(loss, OrtValue) and loss.numpy().shape == ()
""",
    "names": """
assert model.input_names() == ["x", "target"]
assert len(model.output_names()) == 1
assert model.training and not model.eval().training and model.train().training
""",
    "session_options": """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
other = Module("training_model.onnx", state, "eval_model.onnx", "cpu", options)
assert np.isfinite(other(x, y))
""",
    "errors": """
for arguments in [(x,), (x, y, y), (x, y.astype(np.float64)[:, :1, None])]:
    try:
        model(*arguments)
    except RuntimeError:
        continue
    raise AssertionError(arguments)
""",
    "training_model_in_a_plain_session": """
import onnxruntime
session = onnxruntime.InferenceSession("training_model.onnx")
feeds = {"x": x, "target": y}
for name in PARAMETERS:
    feeds[name] = state.parameters[name].data
results = session.run(None, feeds)
assert np.isclose(results[0], model(x, y))
""",
}
