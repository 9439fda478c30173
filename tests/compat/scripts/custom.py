"""onnxcustom: training with scikit-learn's habits, as its examples show it."""

SCRIPTS = {
    "add_loss_output": """
import onnxruntime
from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer
with_loss = add_loss_output(linear())
assert [o.name for o in with_loss.graph.output][0] == "loss"
assert "label" in [i.name for i in with_loss.graph.input]
assert list(get_train_initializer(linear())) == ["coef", "intercept"]
session = onnxruntime.InferenceSession(with_loss.SerializeToString())
assert session.run(["loss"], {"X": X, "label": Y})[0].size == 1
""",
    "ort_gradient_optimizer": """
from onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxcustom.utils.orttraining_helper import add_loss_output
model = add_loss_output(linear())
session = OrtGradientOptimizer(model, ["coef", "intercept"], learning_rate=1e-2, batch_size=10,
                               max_iter=100, warm_start=True)
session.fit(X, Y)
losses = session.train_losses_
assert losses[-1] < losses[0]
state = session.get_state()
assert set(state) == {"coef", "intercept"}
trained = session.get_trained_onnx()
assert trained.graph.initializer
""",
    "ort_gradient_forward_backward_optimizer": """
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_rate import LearningRateSGD
session = OrtGradientForwardBackwardOptimizer(
    linear(), ["coef", "intercept"], learning_rate=LearningRateSGD(0.05), max_iter=50,
    batch_size=10)
session.fit(X, Y)
assert session.train_losses_[-1] < session.train_losses_[0]
assert np.isfinite(session.score(X, Y)) and session.losses(X, Y).shape[0] == 20
assert set(session.get_params()) >= {"learning_rate", "max_iter", "learning_loss"}
""",
    "nesterov_and_penalty": """
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty
from onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov
session = OrtGradientForwardBackwardOptimizer(
    linear(), ["coef", "intercept"], batch_size=10, max_iter=20,
    learning_rate=LearningRateSGDNesterov(1e-3, nesterov=True, momentum=0.9),
    learning_penalty=ElasticLearningPenalty(l1=0, l2=1e-3))
session.fit(X, Y)
assert np.isfinite(session.train_losses_).all()
""",
    "pickle_and_sklearn": """
import pickle
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
session = OrtGradientForwardBackwardOptimizer(linear(), learning_rate=1e-2, max_iter=5)
session.fit(X, Y)
again = pickle.loads(pickle.dumps(session))
for a, b in zip(session.get_state(), again.get_state()):
    value = (lambda v: v.numpy() if hasattr(v, "numpy") else v)
    assert np.allclose(value(a), value(b)) if not isinstance(a, str) else a == b
""",
    "ort_gradient_forward_backward": """
from onnxcustom.training.ortgradient import OrtGradientForwardBackward
model = linear()
weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
forward_backward = OrtGradientForwardBackward(model, debug=False)
instance = forward_backward.new_instance()
outputs = instance.forward([X, weights["coef"], weights["intercept"]], training=True)
prediction = outputs[0].numpy()
assert np.allclose(prediction, X @ weights["coef"] + weights["intercept"], atol=1e-5)
gradients = instance.backward([np.ones_like(prediction)])
assert np.allclose(gradients[1].numpy(), X.sum(0)[:, None], atol=1e-4)
""",
    "learning_rates": """
from onnxcustom.training.sgd_learning_rate import (
    BaseLearningRate, LearningRateSGD, LearningRateSGDNesterov)
rate = LearningRateSGD(eta0=0.1, learning_rate="invscaling", power_t=0.5)
values = list(rate.loop(5))
assert len(values) == 5 and values[0] >= values[-1] > 0
assert isinstance(BaseLearningRate.select("SGD"), LearningRateSGD)
assert isinstance(BaseLearningRate.select("Nesterov"), LearningRateSGDNesterov)
assert isinstance(BaseLearningRate.select(0.5), LearningRateSGD)
""",
    "learning_losses": """
from onnxcustom.training.sgd_learning_loss import (
    AbsoluteLearningLoss, BaseLearningLoss, ElasticLearningLoss, NegLogLearningLoss,
    SquareLearningLoss)
from onnxcustom.utils.onnxruntime_helper import get_ort_device, numpy_to_ort_value
for name, kind in [("square_error", SquareLearningLoss), ("absolute_error", AbsoluteLearningLoss),
                   ("elastic", ElasticLearningLoss), ("log", NegLogLearningLoss)]:
    assert isinstance(BaseLearningLoss.select(name), kind)
loss = SquareLearningLoss()
device = get_ort_device("cpu")
loss.build_onnx_function(15, device, None)
prediction = np.zeros_like(Y)
value, gradient = loss.loss_gradient(device, numpy_to_ort_value(Y), numpy_to_ort_value(prediction))
assert np.isclose(value.numpy(), 0.5 * (Y ** 2).sum(), rtol=1e-4)
assert np.allclose(gradient.numpy(), prediction - Y)
""",
    "data_loader": """
from onnxcustom.training.data_loader import OrtDataLoader
data = OrtDataLoader(X, Y, batch_size=5)
batches = list(data.iter_numpy())
assert len(batches) == 4 and batches[0][0].shape == (5, 2)
assert len(data) == 20
""",
    "onnx_derivative": """
import onnxruntime
from onnxcustom.training.grad_helper import DerivativeOptions, onnx_derivative
gradient = onnx_derivative(linear(), weights=["coef"], inputs=["X"])
session = onnxruntime.InferenceSession(gradient.SerializeToString())
assert {"X_grad", "coef_grad"} <= {o.name for o in session.get_outputs()}
ones = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
filled = onnx_derivative(linear(), ["coef"], ["X"], options=ones)
assert filled.graph.output
""",
    "onnx_helpers": """
from onnxcustom.utils.onnx_helper import (
    add_initializer, dtype_to_var_type, get_onnx_opset, onnx_rename_weights, proto_type_to_dtype,
    replace_initializers_into_onnx)
model = linear()
assert get_onnx_opset(model) == 15
assert proto_type_to_dtype(1) == np.float32
renamed = onnx_rename_weights(mlp())
names = [i.name for i in renamed.graph.initializer]
assert names == sorted(names)
changed = replace_initializers_into_onnx(model, {"coef": np.ones((2, 1), np.float32)})
assert (onnx.numpy_helper.to_array(changed.graph.initializer[0]) == 1).all()
""",
    "onnx_functions": """
import onnxruntime
from onnxcustom.utils.onnx_function import function_onnx_graph, get_supported_functions
assert {"axpy", "copy", "grad_loss_square_error"} <= set(get_supported_functions())
axpy = function_onnx_graph("axpy")
session = onnxruntime.InferenceSession(axpy.SerializeToString())
a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
names = [i.name for i in session.get_inputs()]
result = session.run(None, dict(zip(names, (a, b, np.array([2], np.float32)))))[0]
assert np.allclose(result, 2 * a + b)
""",
    "devices": """
from onnxcustom.utils.onnxruntime_helper import (
    device_to_providers, get_ort_device, get_ort_device_type, numpy_to_ort_value,
    ort_device_to_string)
from onnxcustom.utils.print_helper import str_ortvalue
device = get_ort_device("cpu")
assert ort_device_to_string(device) == "cpu"
assert "CPUExecutionProvider" in str(device_to_providers("cpu"))
assert "float" in str_ortvalue(numpy_to_ort_value(X)).lower()
""",
    "exceptions": """
from onnxcustom.training import ConvergenceError, ConvergenceWarning, EvaluationError, ProviderError
from onnxcustom.training.excs import ConvergenceError as Again
assert Again is ConvergenceError and issubclass(ConvergenceError, RuntimeError)
""",
}
