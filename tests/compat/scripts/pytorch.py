"""ORTTrainer in both generations, ORTModule, and what belonged to them."""

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 8)
        self.relu = torch.nn.ReLU()
        self.fc2 = torch.nn.Linear(8, 3)

    def forward(self, input1):
        return self.fc2(self.relu(self.fc1(input1)))

torch.manual_seed(0)
inputs = torch.tensor(x)
targets = torch.tensor(labels)
"""

SCRIPTS = {
    name: MODULE + code
    for name, code in {
        "ort_trainer_v1": """
from onnxruntime.capi.ort_trainer import IODescription, ModelDescription, ORTTrainer

def loss_with_flat_output(output, target):
    return torch.nn.functional.cross_entropy(output.view(-1, 3), target)

def model_description():
    input_desc = IODescription('input1', [8, 4], torch.float32)
    label_desc = IODescription('label', [8], torch.int64)
    loss_desc = IODescription('loss', [], torch.float32)
    output_desc = IODescription('output', [8, 3], torch.float32)
    return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])

lr = 0.1
learning_rate = IODescription('Learning_Rate', [lr,], torch.float32)
trainer = ORTTrainer(Net(), loss_with_flat_output, model_description(), "SGDOptimizer", None,
                     learning_rate, torch.device("cpu"), _opset_version=12)
losses = []
for _ in range(20):
    loss, output = trainer.train_step(inputs, targets, torch.tensor([lr]))
    losses.append(float(loss))
assert losses[-1] < losses[0] and output.shape == (8, 3)
trainer.eval()
loss, output = trainer.eval_step(inputs, targets)
assert set(trainer.state_dict()) >= {"fc1.weight", "fc2.bias"}
trainer.save_as_onnx("model.onnx")
""",
        "ort_trainer_v1_checkpoint": """
from onnxruntime.capi.ort_trainer import (
    IODescription, LossScaler, ModelDescription, ORTTrainer, generate_sample, load_checkpoint,
    save_checkpoint)
description = ModelDescription(
    [IODescription('input1', ['batch', 4], torch.float32),
     IODescription('label', ['batch'], torch.int64, num_classes=3)],
    [IODescription('loss', [], torch.float32),
     IODescription('output', ['batch', 3], torch.float32)])

def make():
    return ORTTrainer(Net(), torch.nn.CrossEntropyLoss(), description, "AdamOptimizer", None,
                      IODescription('Learning_Rate', [1], torch.float32), "cpu")

trainer = make()
trainer.train_step(inputs, targets, torch.tensor([0.01]))
save_checkpoint(trainer, ".")
other = make()
load_checkpoint(other, ".")
other.train_step(inputs, targets, torch.tensor([0.0]))
scaler = LossScaler("loss_scale", True)
scaler.update_loss_scale(False)
assert scaler.loss_scale_ == 2 ** 15
""",
        "ort_trainer": """
from onnxruntime.training import ORTTrainer, ORTTrainerOptions, optim
model_desc = {'inputs': [('input1', ['batch', 4]), ('label', ['batch'])],
              'outputs': [('loss', [], True), ('output', ['batch', 3])]}
trainer = ORTTrainer(Net(), model_desc, optim.AdamConfig(lr=0.01),
                     loss_fn=torch.nn.CrossEntropyLoss(),
                     options=ORTTrainerOptions({'device': {'id': 'cpu'}}))
losses = [float(trainer.train_step(inputs, targets)[0]) for _ in range(30)]
assert losses[-1] < losses[0]
loss, output = trainer.eval_step(inputs, targets)
state = trainer.state_dict()
assert set(state) >= {"model", "optimizer", "trainer_options", "train_step_info"}
assert set(state["optimizer"]["fc1.weight"]) >= {"Moment_1", "Moment_2"}
trainer.save_as_onnx("model.onnx")
assert any(i.name == "fc1.weight" for i in onnx.load("model.onnx").graph.initializer)
""",
        "ort_trainer_checkpoint": """
from onnxruntime.training import ORTTrainer, ORTTrainerOptions, checkpoint, optim
model_desc = {'inputs': [('input1', ['batch', 4]), ('label', ['batch'])],
              'outputs': [('loss', [], True), ('output', ['batch', 3])]}

def make():
    return ORTTrainer(Net(), model_desc, optim.SGDConfig(lr=0.1),
                      loss_fn=torch.nn.CrossEntropyLoss(),
                      options=ORTTrainerOptions({'device': {'id': 'cpu'}}))

trainer = make()
trainer.train_step(inputs, targets)
trainer.save_checkpoint("trainer.ckpt", user_dict={"epoch": 2})
weights = trainer.state_dict(pytorch_format=True)
other = make()
assert other.load_checkpoint("trainer.ckpt") == {"epoch": 2}
other.eval_step(inputs, targets)
for name, value in other.state_dict(pytorch_format=True).items():
    assert np.allclose(value, weights[name])
merged = checkpoint.aggregate_checkpoints(["trainer.ckpt"])
assert set(merged) >= {"fc1.weight"}
checkpoint.experimental_save_checkpoint(trainer, "folder", checkpoint_state_dict={"epoch": 3})
assert checkpoint.experimental_load_checkpoint(other, "folder") == {"epoch": 3}
""",
        "options": """
from onnxruntime.training import ORTTrainerOptions
from onnxruntime.training.orttrainer_options import ORTTrainerOptions as Again
assert Again is ORTTrainerOptions
options = ORTTrainerOptions({'batch': {'gradient_accumulation_steps': 128}})
assert options.batch.gradient_accumulation_steps == 128
assert options.utils.grad_norm_clip is True
try:
    ORTTrainerOptions({'nothing': 1})
except ValueError as error:
    assert "Invalid options" in str(error)
else:
    raise AssertionError
""",
        "train_step_info": """
from onnxruntime.training import TrainStepInfo, optim
from onnxruntime.training.orttrainer import TrainStepInfo as Again
config = optim.LambConfig([{'params': ['fc1.weight'], 'alpha': 0.8}], lr=0.01)
info = Again(optimizer_config=config, all_finite=True, fetches=[], optimization_step=1, step=2)
assert info.optimization_step == 1 and Again is TrainStepInfo
""",
        "lr_schedulers": """
from onnxruntime.training import TrainStepInfo, optim
from onnxruntime.training.optim import lr_scheduler
config = optim.SGDConfig(lr=1.0)
for kind in (lr_scheduler.ConstantWarmupLRScheduler, lr_scheduler.CosineWarmupLRScheduler,
             lr_scheduler.LinearWarmupLRScheduler, lr_scheduler.PolyWarmupLRScheduler):
    scheduler = kind(total_steps=10, warmup=0.5)
    rates = []
    for step in range(10):
        info = TrainStepInfo(config, optimization_step=step)
        scheduler._step(info) if hasattr(scheduler, "_step") else None
        rates.append(scheduler.get_lr(info)[0])
    assert rates[0] < rates[4]
""",
        "loss_scalers": """
from onnxruntime.training import TrainStepInfo, amp, optim
scaler = amp.loss_scaler.DynamicLossScaler(automatic_update=True, loss_scale=2.0**10)
info = TrainStepInfo(optim.SGDConfig(lr=1.0), all_finite=False)
scaler.update(info)
assert scaler.loss_scale == 2.0**9
scaler.reset()
assert issubclass(amp.DynamicLossScaler, amp.LossScaler)
""",
        "optimizer_configs": """
from onnxruntime.training import optim
config = optim.AdamConfig(lr=0.1, alpha=0.8, weight_decay_mode=
                          optim.AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE)
assert config.lr == 0.1 and config.alpha == 0.8 and config.name == "AdamOptimizer"
try:
    optim.SGDConfig(params=[{'params': ['a']}], lr=0.1)
except AssertionError:
    pass
else:
    raise RuntimeError
""",
        "ort_module": """
from onnxruntime.training.ortmodule import ORTModule
net = Net()
model = ORTModule(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss()
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
assert losses[-1] < losses[0]
assert set(model.state_dict()) == set(net.state_dict())
model.eval()
assert torch.allclose(model(inputs), net(inputs), atol=1e-5)
""",
        "torch_ort": """
from torch_ort import ORTModule
import onnxruntime.training as ort
assert ort.ORTModule is ORTModule and ort.is_ortmodule_available()
assert ORTModule(Net())(inputs).shape == (8, 3)
""",
        "debug_options": """
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from torch_ort import DebugOptions as Again
assert Again is DebugOptions
model = ORTModule(Net(), DebugOptions(save_onnx=True, onnx_prefix='net', log_level=LogLevel.ERROR))
model(inputs).sum().backward()
import os
assert any(f.startswith("net") and f.endswith(".onnx") for f in os.listdir())
""",
        "fused_adam": """
from onnxruntime.training.optim import FP16_Optimizer, FusedAdam
from onnxruntime.training.optim.fused_adam import AdamWMode
for mode, other in ((AdamWMode.ADAMW_TORCH, torch.optim.AdamW),
                    (AdamWMode.ADAM_L2_REGULARIZATION, torch.optim.Adam)):
    nets = [Net(), Net()]
    nets[1].load_state_dict(nets[0].state_dict())
    mine = FusedAdam(nets[0].parameters(), lr=0.01, weight_decay=0.1, eps=1e-6, adam_w_mode=mode)
    theirs = other(nets[1].parameters(), lr=0.01, weight_decay=0.1, eps=1e-6)
    assert FP16_Optimizer(mine) is mine
    for _ in range(5):
        for net, optimizer in zip(nets, (mine, theirs)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    for a, b in zip(nets[0].parameters(), nets[1].parameters()):
        assert torch.allclose(a, b, atol=1e-5)
net = Net()
optimizer = FusedAdam(net.parameters())
assert optimizer._mode is AdamWMode.ADAMW_TRANSFORMERS
""",
        "export_gradient_graph": """
import onnxruntime
from onnxruntime.training.experimental import export_gradient_graph
net = Net()
export_gradient_graph(net, torch.nn.CrossEntropyLoss(), inputs, targets, "gradient.onnx")
session = onnxruntime.InferenceSession("gradient.onnx")
names = [n for n, _ in net.named_parameters()]
assert [i.name for i in session.get_inputs()] == ["input", "labels", *names]
assert [o.name for o in session.get_outputs()] == ["output", "loss", *(f"{n}_grad" for n in names)]
feeds = {"input": x, "labels": labels}
feeds.update((n, p.detach().numpy()) for n, p in net.named_parameters())
found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))
loss = torch.nn.functional.cross_entropy(net(inputs), targets)
loss.backward()
assert np.isclose(found["loss"], float(loss.detach()), rtol=1e-5)
for name, p in net.named_parameters():
    assert np.allclose(found[f"{name}_grad"], p.grad.numpy(), atol=1e-5)
""",
        "torch_extensions": """
from onnxruntime.training.ortmodule.torch_cpp_extensions import install
install.build_torch_cpp_extensions()
""",
    }.items()
}
