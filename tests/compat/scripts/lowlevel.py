"""TrainingSession, the graph builders and the agent."""

SCRIPTS = {
    "training_session": """
from onnxruntime import TrainingSession
from onnxruntime.capi._pybind_state import TrainingParameters
from onnxruntime import SessionOptions

parameters = TrainingParameters()
parameters.loss_output_name = "loss"
parameters.training_optimizer_name = "SGDOptimizer"
parameters.weights_to_train = {"coef", "intercept"}
parameters.optimizer_attributes_map = {"coef": {}, "intercept": {}}
parameters.optimizer_int_attributes_map = {"coef": {}, "intercept": {}}
session = TrainingSession(
    linear_with_loss().SerializeToString(), parameters, SessionOptions(),
    providers=["CPUExecutionProvider"])
names = [i.name for i in session.get_inputs()]
assert names == ["X", "label", "Learning_Rate"]
losses = []
for _ in range(100):
    feeds = {"X": X, "label": Y, "Learning_Rate": np.array([0.02], np.float32)}
    losses.append(float(session.run(["loss"], feeds)[0]))
assert losses[-1] < losses[0] * 1e-2
weights = session.get_state()
assert set(weights) == {"coef", "intercept"}
""",
    "training_session_from_training": """
from onnxruntime.training import TrainingParameters, TrainingSession
parameters = TrainingParameters()
assert parameters.lr_params_feed_name == "Learning_Rate"
assert parameters.gradient_accumulation_steps == 1 and parameters.weights_to_train == set()
parameters.loss_output_name = "loss"
parameters.training_optimizer_name = "AdamOptimizer"
parameters.weights_to_train = {"coef"}
onnx.save(linear_with_loss(), "model.onnx")
session = TrainingSession("model.onnx", parameters)
before = session.get_state()["coef"].copy()
session.run(None, {"X": X, "label": Y, "Learning_Rate": np.array([0.1], np.float32)})
assert not np.allclose(session.get_state()["coef"], before)
assert set(session.get_optimizer_state()["coef"]) >= {"Moment_1", "Moment_2", "Update_Count"}
""",
    "training_session_with_binding": """
from onnxruntime import TrainingSession
from onnxruntime.capi import _pybind_state as C
parameters = C.TrainingParameters()
parameters.loss_output_name = "loss"
parameters.training_optimizer_name = "SGDOptimizer"
parameters.weights_to_train = {"coef", "intercept"}
session = TrainingSession(linear_with_loss().SerializeToString(), parameters)
bind = session.io_binding()._iobinding
assert isinstance(bind, C.SessionIOBinding)
device = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
rate = np.array([0.02], np.float32)
keep = [C.OrtValue.ortvalue_from_numpy(v, device) for v in (X, Y, rate)]
for value, node in zip(keep, session.get_inputs()):
    bind.bind_ortvalue_input(node.name, value)
bind.bind_output("loss", device)
first = None
for _ in range(50):
    session._sess.run_with_iobinding(bind, None)
    loss = float(bind.get_outputs()[0].numpy())
    first = loss if first is None else first
assert loss < first
""",
    "gradient_graph_builder": """
import onnxruntime
from onnxruntime.capi._pybind_state import GradientGraphBuilder
model = linear_with_loss()
builder = GradientGraphBuilder(
    model.SerializeToString(), {"loss"}, {"coef", "intercept"}, "loss")
builder.build()
builder.save("gradient.onnx")
gradient = onnx.load_from_string(builder.get_model())
assert {"coef_grad", "intercept_grad"} <= {o.name for o in gradient.graph.output}
""",
    "ort_module_graph_builder": """
from onnxruntime.capi._pybind_state import (
    OrtModuleGraphBuilder, OrtModuleGraphBuilderConfiguration, Severity,
    TrainingGraphTransformerConfiguration)
config = OrtModuleGraphBuilderConfiguration()
config.initializer_names = ["coef", "intercept"]
config.initializer_names_to_train = ["coef", "intercept"]
config.input_names_require_grad = ["X"]
config.build_gradient_graph = True
config.loglevel = Severity.WARNING
config.graph_transformer_config = TrainingGraphTransformerConfiguration()
builder = OrtModuleGraphBuilder()
builder.initialize(linear().SerializeToString(), config)
builder.build()
trained = onnx.load_from_string(builder.get_gradient_model())
assert [i.name for i in trained.graph.input] == ["X", "coef", "intercept"]
assert [o.name for o in trained.graph.output] == ["X_grad", "coef_grad", "intercept_grad"]
info = builder.get_graph_info()
assert info.user_output_names == ["variable"]
""",
    "training_agent": """
import onnxruntime
from onnxruntime import InferenceSession, RunOptions
from onnxruntime.capi._pybind_state import (
    OrtDevice, OrtModuleGraphBuilder, OrtModuleGraphBuilderConfiguration, OrtValueCache,
    OrtValue, OrtValueVector, PartialGraphExecutionState, TrainingAgent,
    TrainingGraphTransformerConfiguration)
model = linear()
config = OrtModuleGraphBuilderConfiguration()
config.initializer_names = config.initializer_names_to_train = ["coef", "intercept"]
config.input_names_require_grad = ["X"]
builder = OrtModuleGraphBuilder()
builder.initialize(model.SerializeToString(), config)
builder.build(TrainingGraphTransformerConfiguration())
session = InferenceSession(builder.get_gradient_model())
device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
names = ["X", "coef", "intercept"]
agent = TrainingAgent(session._sess, names, [device], [f"{n}_grad" for n in names], [device] * 3)
run_options = RunOptions()
run_options.training_mode = True
weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
feeds = OrtValueVector()
for value in (X, weights["coef"], weights["intercept"]):
    feeds.push_back(OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), device))
state, cache = PartialGraphExecutionState(), OrtValueCache()
outputs = OrtValueVector()
agent.run_forward(feeds, outputs, state, cache)
prediction = outputs[0].numpy()
assert np.allclose(prediction, X @ weights["coef"] + weights["intercept"], atol=1e-5)
back = OrtValueVector()
back.push_back(OrtValue.ortvalue_from_numpy(np.ones_like(prediction), device))
gradients = OrtValueVector()
agent.run_backward(back, gradients, state)
assert np.allclose(gradients[1].numpy(), X.sum(0)[:, None], atol=1e-4)
""",
    "run_options": """
from onnxruntime import RunOptions
options = RunOptions()
options.training_mode = True
assert options.training_mode
""",
    "optimized_model_and_checkpoint": """
from onnxruntime.capi import _pybind_state as C
model = linear()
optimized = C.get_optimized_model(model.SerializeToString(), {"coef", "intercept"}, None)
assert {i.name for i in onnx.load_from_string(optimized).graph.initializer} == {"coef", "intercept"}
tensors = [t.SerializeToString() for t in model.graph.initializer]
C.save_checkpoint(tensors, [], "checkpoint")
state = C.load_checkpoint("checkpoint")
assert len(state.parameters) == 2
C.save_checkpoint(state, "second", True)
other = linear()
content = C.get_model_after_loading_checkpoint("checkpoint", other.SerializeToString())
restored = onnx.load_from_string(content)
assert restored.graph.initializer[0].raw_data == model.graph.initializer[0].raw_data
assert C.is_ortmodule_available() in (True, False) and not C.is_triton_enabled()
""",
    "custom_gradient_definition": """
import json
from onnxruntime.capi._pybind_state import (
    GradientNodeAttributeDefinition, GradientNodeDefinition, register_custom_stop_gradient_edges,
    register_gradient_definition)
factor = GradientNodeAttributeDefinition("value", json.dumps([6.0]), "float", True)
register_custom_stop_gradient_edges("my.ops::SixFold:", {1})
register_gradient_definition("my.ops::SixFold:", [
    GradientNodeDefinition("Constant", "", [], ["six"], [factor]),
    GradientNodeDefinition("Mul", "", ["GO(0)", "six"], ["GI(0)"], [])])
import onnxtrain
from onnxtrain import extend
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.ops": 1]>
    g (float[2] x) => (float loss) <float[2] y> {
        y = my.ops.SixFold(x)  loss = ReduceSum<keepdims = 0>(y) }''')
gradient = onnxtrain.differentiate(model, wrt=["x"])
assert [o.name for o in gradient.graph.output] == ["loss", "x_grad"]
extend.unregister("SixFold", domain="my.ops")
""",
}
