"""artifacts and onnxblock, as their documentation shows them."""

SCRIPTS = {
    "generate_artifacts": """
import os
from onnxruntime.training import artifacts
model = mlp()
artifacts.generate_artifacts(model,
                             requires_grad = ["weight1", "bias1"],
                             frozen_params = ["weight2", "bias2"],
                             loss = artifacts.LossType.CrossEntropyLoss,
                             optimizer = artifacts.OptimType.AdamW,
                             artifact_directory = os.getcwd())
names = {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"}
assert names <= set(os.listdir())
trained = onnx.load("training_model.onnx")
assert [i.name for i in trained.graph.input] == [
    "x", "labels", "weight1", "bias1", "weight2", "bias2"]
assert [o.name for o in trained.graph.output][1:] == ["weight1_grad", "bias1_grad"]
""",
    "generate_artifacts_from_path_with_prefix": """
import os
from onnxruntime.training import artifacts
onnx.save(mlp(), "model.onnx")
artifacts.generate_artifacts("model.onnx", requires_grad=PARAMETERS, prefix="my_",
                             loss=artifacts.LossType.L1Loss, optimizer=artifacts.OptimType.SGD)
assert os.path.exists("my_training_model.onnx") and os.path.exists("my_checkpoint")
""",
    "generate_artifacts_without_parameters": """
from onnxruntime.training import artifacts
loss_model = linear_with_loss()
artifacts.generate_artifacts(loss_model)
trained = onnx.load("training_model.onnx")
assert {"coef", "intercept"} <= {i.name for i in trained.graph.input}
""",
    "generate_artifacts_errors": """
from onnxruntime.training import artifacts
for arguments, error in [
    (dict(requires_grad=["weight1"], frozen_params=["weight1"]), RuntimeError),
    (dict(requires_grad=["weight1"], loss="mse"), RuntimeError),
    (dict(requires_grad=["weight1"], loss=artifacts.LossType.MSELoss, optimizer="adam"), TypeError),
]:
    try:
        artifacts.generate_artifacts(mlp(), **arguments)
    except error:
        continue
    raise AssertionError(arguments)
""",
    "additional_outputs": """
from onnxruntime.training import artifacts
artifacts.generate_artifacts(mlp(), requires_grad=PARAMETERS, loss=artifacts.LossType.MSELoss,
                             additional_output_names=["output"])
assert [o.name for o in onnx.load("eval_model.onnx").graph.output][1] == "output"
""",
    "custom_loss": """
import onnxruntime.training.onnxblock as onnxblock
from onnxruntime.training import artifacts

class WeightedAverageLoss(onnxblock.Block):
    def __init__(self):
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(0.4)
        self._w2 = onnxblock.blocks.Constant(0.6)
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, loss_input_name1, loss_input_name2):
        return self._add(
            self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")))

artifacts.generate_artifacts(mlp(outputs=2), requires_grad=["weight1", "bias1"],
                             frozen_params=["weight2", "bias2"], loss=WeightedAverageLoss(),
                             optimizer=artifacts.OptimType.AdamW)
names = [i.name for i in onnx.load("training_model.onnx").graph.input]
assert names[:3] == ["x", "target1", "target2"]
""",
    "training_block": """
import onnxruntime.training.onnxblock as onnxblock

class MyTraining(onnxblock.TrainingBlock):
    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, name):
        return self.loss(name), name

block = MyTraining()
for name in PARAMETERS[:2]:
    block.requires_grad(name)
block.requires_grad("weight2", False)
with onnxblock.base(mlp()) as accessor:
    block("output")
    assert accessor.model.graph.input[0].name == "x"
trained, evaluated = block.to_model_proto()
trainable, frozen = block.parameters()
assert [p.name for p in trainable] == ["weight1", "bias1"]
assert [p.name for p in frozen] == ["weight2"]
assert len(evaluated.graph.output) == 2
""",
    "optimizer_block": """
import onnxruntime.training.onnxblock as onnxblock

class MyTraining(onnxblock.TrainingBlock):
    def build(self, name):
        return onnxblock.loss.MSELoss()(name)

block = MyTraining()
for name in PARAMETERS:
    block.requires_grad(name)
with onnxblock.base(mlp()):
    block("output")
clip = onnxblock.optim.ClipGradNorm(2.5)
with onnxblock.empty_base() as accessor:
    optimizer = onnxblock.optim.AdamW(clip_grad=clip, weight_decay=0.01)
    optimizer(block.parameters())
    model = accessor.model
names = ["learning_rate", "step", "params", "gradients", "first_order_moments",
         "second_order_moments"]
assert [i.name for i in model.graph.input] == names
onnxblock.save_checkpoint(block.parameters(), "checkpoint")
fresh = mlp()
onnxblock.load_checkpoint_to_model("checkpoint", fresh)
""",
    "forward_block": """
import onnxruntime, onnxruntime.training.onnxblock as onnxblock

class Scaled(onnxblock.ForwardBlock):
    def build(self, name):
        scaled = onnxblock.blocks.Mul()(name, onnxblock.blocks.Constant(2.0)())
        return onnxblock.blocks.Sigmoid()(scaled)

block = Scaled()
with onnxblock.base(mlp()):
    block("output")
session = onnxruntime.InferenceSession(block.to_model_proto().SerializeToString())
assert session.run(None, {"x": x})[0].shape == (8, 3)
""",
    "empty_base_linear": """
import onnxruntime.training.onnxblock as onnxblock
from onnxruntime.training.onnxblock import blocks

class Net(onnxblock.ForwardBlock):
    def __init__(self):
        super().__init__()
        self.linear = blocks.Linear(4, 2)

    def build(self):
        self.base.graph.input.append(
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4]))
        return self.linear("x")

net = Net()
with onnxblock.empty_base(17) as accessor:
    net()
model = net.to_model_proto()
assert any(i.name.startswith("onnx::linear.weight") for i in model.graph.initializer)
""",
    "model_accessor": """
from onnxruntime.training.onnxblock import model_accessor, base
assert model_accessor._GLOBAL_ACCESSOR is None
with base(mlp()) as accessor:
    assert model_accessor._GLOBAL_ACCESSOR is accessor
    try:
        with base(mlp()):
            pass
    except RuntimeError as error:
        assert "already exists" in str(error)
    else:
        raise AssertionError
assert model_accessor._GLOBAL_ACCESSOR is None
""",
    "arithmetic_blocks": """
import onnxruntime, onnxruntime.training.onnxblock as onnxblock
from onnxruntime.training.onnxblock import blocks

class Chain(onnxblock.ForwardBlock):
    def build(self, a, b):
        total = blocks.Add()(a, blocks.Neg()(b))
        power = blocks.Pow(2.0)(blocks.Abs()(total))
        return blocks.ReduceMean(keepdims=False)(blocks.Clip(0.0, 1.0)(power))

two = mlp(outputs=2)
chain = Chain()
with onnxblock.base(two):
    chain("output", "output")
session = onnxruntime.InferenceSession(chain.to_model_proto().SerializeToString())
assert session.run(None, {"x": x})[0] == 0
""",
    "label_names": """
import onnxruntime.training.onnxblock as onnxblock
from onnxruntime.training.onnxblock import _graph_utils
name = _graph_utils.generate_graph_name("mine")
assert name.startswith("onnx::mine::")
""",
    "old_onnx_model": """
import onnxruntime.training.onnxblock as onnxblock

class MyTrainingModel(onnxblock.TrainingModel):
    def __init__(self):
        super(MyTrainingModel, self).__init__()
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.building_blocks.Constant(0.6)
        self._w2 = onnxblock.building_blocks.Constant(0.4)
        self._add = onnxblock.building_blocks.Add()
        self._mul = onnxblock.building_blocks.Mul()

    def build(self, loss_input_name1, loss_input_name2):
        return self._add(
            self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")))

model = mlp(outputs=2)
my_model = MyTrainingModel()
with onnxblock.onnx_model(model) as accessor:
    my_model("output", "hidden")
    eval_model = accessor.eval_model
onnx.save(model, "training_model.onnx")
onnx.save(eval_model, "eval_model.onnx")
optimizer = onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(2.5))
with onnxblock.onnx_model() as accessor:
    optimizer(my_model.parameters())
    optimizer_model = accessor.model
onnx.save(optimizer_model, "adamw_optimizer.onnx")
onnxblock.save_checkpoint(my_model.parameters(), "checkpoint.ckpt")
from onnxruntime.training.api import CheckpointState, Module, Optimizer
state = CheckpointState.load_checkpoint("checkpoint.ckpt")
module = Module("training_model.onnx", state, "eval_model.onnx")
stepper = Optimizer("adamw_optimizer.onnx", module)
hidden = np.zeros((8, 6), np.float32)
first = float(np.asarray(module(x, y, hidden)).reshape(()))
for _ in range(20):
    module(x, y, hidden); stepper.step(); module.lazy_reset_grad()
assert float(np.asarray(module(x, y, hidden)).reshape(())) < first
""",
    "weighted_losses": """
from onnxruntime.training import artifacts, onnxblock
loss = onnxblock.loss.CrossEntropyLoss(weight=np.array([1, 2, 3], np.float32), ignore_index=1)
artifacts.generate_artifacts(mlp(), requires_grad=PARAMETERS, loss=loss,
                             optimizer=onnxblock.optim.SGD())
loss = onnxblock.loss.BCEWithLogitsLoss(pos_weight=np.array([2, 2, 2], np.float32))
artifacts.generate_artifacts(mlp(), requires_grad=PARAMETERS, loss=loss)
""",
}
