"""Everything here that reads a file, each with sound files to damage."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import select
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import onnxtrain
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import OnnxTrainError
from onnxtrain.operators import KERNEL
from onnxtrain.runtime.files import odtc
from onnxtrain.runtime.loop.schedulers import WarmUp
from tests.js import tools

from . import models

DATA = Path(__file__).parents[1] / "compat" / "data"
X, Y = np.ones((8, 4), np.float32), np.ones((8, 3), np.float32)


@dataclass(frozen=True)
class Parser:
    """A way to read a file.

    Attributes:
        name: the file's name, which often decides how it is read.
        form: how it is damaged: see `mutate.FORMS`.
        seeds: sound contents.
        read: reads the damaged file; gets its path.
        cost: how many inputs of the others one of these is worth, by its time.
        program: what must be installed to try it, besides Python packages.
    """

    name: str
    form: str
    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]
    cost: int = 1
    program: str = ""

    @property
    def can_be_tried(self) -> bool:
        """Whether the program is there."""
        return not self.program or shutil.which(self.program) is not None


def prepare(folder: Path) -> None:
    """A folder with sound artifacts, data, a run and checkpoints."""
    models.sound_folder(folder / "sound")
    _write_resumable(folder)
    odtc.save(_state(folder).training_state, folder / "old", True)
    shutil.copy(folder / "sound" / "predict.onnx", folder / "predict.onnx")


def _state(folder: Path) -> CheckpointState:
    return CheckpointState.load_checkpoint(folder / "resumable")


def _trainer(folder: Path, checkpoint: Path):
    from onnxtrain.runtime.loop.callbacks import EarlyStopping
    from onnxtrain.runtime.loop.schedulers import ReduceLROnPlateau
    from onnxtrain.runtime.loop.trainer import Trainer

    sound = folder / "sound"
    trainer = Trainer(
        sound / "training_model.onnx", sound / "optimizer_model.onnx", checkpoint,
        scheduler=lambda optimizer: WarmUp(ReduceLROnPlateau(optimizer), 3),
    )  # fmt: skip
    return trainer, EarlyStopping("loss", patience=9, restore_best=False)


def _write_resumable(folder: Path) -> None:
    trainer, stopping = _trainer(folder, folder / "sound" / "checkpoint")
    trainer.state.properties["whole"] = 3
    trainer.state.properties["text"] = "é"
    trainer.state.properties["best"] = float("inf")
    trainer.fit(X, epochs=2, batch_size=4, callbacks=[stopping], progress=False)
    trainer.save(folder / "resumable")


def content_of(*names: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(folder / name).read_bytes() for name in names]


resumable = content_of("resumable")


# --- models and artifacts -------------------------------------------------------------------------


def forward_models(folder: Path) -> list[bytes]:
    """Models with tensors in all places, and one with a loop."""
    made = []
    for carrier in models.CARRIERS:
        model = models.forward()
        tensor = numpy_helper.from_array(models.VALUES, "c")
        models.CARRIERS[carrier](model, tensor)
        made.append(model.SerializeToString())
    loop = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x) => (float loss, float[N, 4] y)
          <float[4] w = {1, 2, 3, 4}, int64 n = {3}, bool yes = {1}> {
          y = Loop (n, yes, x) <
            body = b (int64 i, bool c, float[N, 4] s) => (bool d, float[N, 4] t) {
              d = Identity (c)  t = Mul (s, w) }>
          loss = ReduceSum <keepdims = 0> (y)
        }
    """)
    return [*made, loop.SerializeToString()]


def external_models(folder: Path) -> list[bytes]:
    (folder / "w.bin").write_bytes(models.VALUES.tobytes())
    made = []
    for carrier in models.CARRIERS:
        model = models.forward()
        entries = [("location", "w.bin"), ("offset", "0"), ("length", "16")]
        models.CARRIERS[carrier](model, models.external(entries))
        made.append(model.SerializeToString())
    return made


def load(path: Path) -> object:
    from onnxtrain.graph import load as read
    from onnxtrain.normalize import normalize

    return normalize(read(path))


def ort_models(folder: Path) -> list[bytes]:
    """An artifact in onnxruntime's own format."""
    from onnxtrain.artifacts import generate_artifacts

    target = folder / "ort"
    target.mkdir(exist_ok=True)
    generate_artifacts(models.forward(), ["w"], artifact_directory=target, ort_format=True)
    return [(target / "training_model.ort").read_bytes()]


def differentiate(path: Path) -> object:
    import onnxtrain

    return onnxtrain.differentiate(path)


def prepare_qat(path: Path) -> object:
    """Weights alone: what is observed of activations runs the model, which others do."""
    from onnxtrain import quant

    return quant.prepare_qat(path, activation_bits=None)


def prepared_models(folder: Path) -> list[bytes]:
    """A model that rounds, and the one with integers that comes of it."""
    from onnxtrain import quant

    prepared = quant.prepare_qat(folder / "predict.onnx", activation_bits=None)
    return [prepared.SerializeToString(), quant.convert(prepared).SerializeToString()]


def convert_qat(path: Path) -> object:
    from onnxtrain import quant

    return quant.convert(quant.prepare_qat(path, activation_bits=None))


def quantize(path: Path) -> object:
    from onnxtrain import quant

    return quant.quantize(path, embeddings=True)


def generate(path: Path) -> object:
    from onnxtrain.artifacts import generate_artifacts

    target = path.parent / "made"
    target.mkdir(exist_ok=True)
    return generate_artifacts(path, ["w"], artifact_directory=target)


def inspect(path: Path) -> object:
    from onnxtrain.summary import summarize

    return summarize(path)


def photo_models(folder: Path) -> list[bytes]:
    from tests.transfer.models import CASES, with_constants

    del folder
    return [with_constants(CASES[n].make()).SerializeToString() for n in ("gemm", "squeezenet")]


def new_head(path: Path) -> object:
    from onnxtrain import transfer

    transfer.normalization(path)
    head = transfer.new_head(path, 3)
    return transfer.head_model(head, (4, 6))


def image_settings(folder: Path) -> list[bytes]:
    shutil.copy(folder / "predict.onnx", folder / "m.onnx")
    processor = {
        "do_rescale": True, "rescale_factor": 0.0039, "do_normalize": True, "image_mean": [0.5],
        "image_std": [0.5], "size": {"height": 8, "width": 8}, "do_center_crop": False,
    }  # fmt: skip
    timm = {"pretrained_cfg": {"mean": [0.4], "std": [0.2], "input_size": [3, 8, 8]}}
    return [json.dumps(processor).encode(), json.dumps(timm).encode()]


def described_images(path: Path) -> object:
    from onnxtrain.cli.image_files import described
    from onnxtrain.cli.images import ImageSettings
    from onnxtrain.cli.settings import Settings
    from onnxtrain.summary import summarize

    settings = Settings(str(path.parent / "m.onnx"))
    return ImageSettings.of(settings, described(settings, summarize(settings.model)))


def module(path: Path) -> object:
    state = CheckpointState.load_checkpoint(path.parent / "sound" / "checkpoint")
    return Module(path, state)(X)


def export(path: Path) -> object:
    from onnxtrain.runtime.step.export import export as write

    state = CheckpointState.load_checkpoint(path.parent / "sound" / "checkpoint")
    return write(path, state.training_state, path.parent / "out.onnx", ["y"])


def few_bit_models(folder: Path) -> list[bytes]:
    """Products with weights of four bits, with zero points and without any."""
    del folder
    models_of_few_bits = []
    for middle in (8, 7):
        model = onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["": 21]>
            g (float[N, 32] x) => (float[N, 4] y)
              <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] all = {-1},
               int64[2] sizes = {4, 32}> {
              scales = Reshape (s, all)
              floats = DequantizeLinear <axis = 0> (w, scales, z)
              matrix = Reshape (floats, sizes)
              turned = Transpose <perm = [1, 0]> (matrix)
              y = MatMul (x, turned)
            }
        """)
        codes = onnx.helper.make_tensor("w", TensorProto.UINT4, [8, 16], bytes(64), raw=True)
        points = bytes([middle * 17] * 4)
        zeros = onnx.helper.make_tensor("z", TensorProto.UINT4, [8], points, raw=True)
        model.graph.initializer.extend([codes, zeros])
        models_of_few_bits.append(model.SerializeToString())
    return models_of_few_bits


def few_bits(path: Path) -> object:
    """The bytes that a session gets; what onnxruntime refuses of them is not taken."""
    from onnxtrain.runtime.files.outline import Outline
    from onnxtrain.runtime.session import devices
    from onnxtrain.runtime.session.few_bits import with_kernels

    outline, options = Outline.of(path.read_bytes()), devices.session_options(threads=1)
    native = None if outline is None else with_kernels(outline, options)
    if native is None:
        return False
    with contextlib.suppress(Exception):
        devices.create_session(native, options).run(None, {"x": np.ones((2, 32), np.float32)})
    return True


def lent_models(folder: Path) -> list[bytes]:
    """The same, marked for our kernel."""
    lent_weights = []
    for content in few_bit_models(folder):
        model = onnx.load_from_string(content)
        sizes = next(t for t in model.graph.initializer if t.name == "sizes")
        sizes.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 32]), "sizes"))
        next(n for n in model.graph.node if n.output[0] == "matrix").doc_string = KERNEL
        lent_weights.append(model.SerializeToString())
    return lent_weights


def lent(path: Path) -> object:
    """A session that is lent the weights; what onnxruntime refuses is not taken."""
    from unittest import mock

    from onnxtrain.runtime.files.outline import Outline
    from onnxtrain.runtime.session import devices, taken_out

    content = path.read_bytes()
    with mock.patch.multiple(taken_out, LEAST_MODEL=0, LEAST_WEIGHT=16):
        outline = Outline.of(content)
        if outline is None or taken_out.taken_out(outline) is None:
            return False
        with contextlib.suppress(Exception):
            session = devices.open_session(content, devices.session_options(threads=1))
            session.run(None, {"x": np.ones((2, 32), np.float32)})
    return True


def blocked_models(folder: Path) -> list[bytes]:
    """Gradients of convolutions that sessions carry out in blocks."""
    del folder
    models_in_blocks = []
    for group, size in ((8, 6), (1, 33)):
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["": 18]>
            g (float[N, 8, {size}, {size}] x, float[8, {8 // group}, 3, 3] w) => (float loss) {{
              h = Tanh (x)
              y = Conv <group = {group}, pads = [1, 1, 1, 1]> (h, w)
              loss = ReduceSum <keepdims = 0> (y)
            }}
        """)
        gradients = onnxtrain.differentiate(model, wrt=["x", "w"], of="loss")
        models_in_blocks.append(gradients.SerializeToString())
    return models_in_blocks


def blocked(path: Path) -> object:
    """The bytes that a session gets; what onnxruntime refuses of them is not taken."""
    from onnxtrain.runtime.files.outline import Outline
    from onnxtrain.runtime.session import devices
    from onnxtrain.runtime.session.blocked import in_blocks

    outline = Outline.of(path.read_bytes())
    content = None if outline is None else in_blocks(outline)
    if content is None:
        return False
    options = devices.session_options(threads=1)
    for size, width in ((6, 1), (33, 8)):
        feeds = {
            "x": np.ones((2, 8, size, size), np.float32),
            "w": np.ones((8, width, 3, 3), np.float32),
        }
        with contextlib.suppress(Exception):
            devices.create_session(content, options).run(None, feeds)
    return True


ROWS = "rows (float[256] row) => (float[256] out) { e = Exp (row) out = Mul (e, row) }"


SOFTMAXES = "s = LogSoftmax <axis = 1> (t) p = Softmax <axis = 1> (s)"


def fused_models(folder: Path) -> list[bytes]:
    """Gradients of nodes that sessions compute together, some inside of a loop; a softmax."""
    del folder
    models_in_groups = []
    for nodes in (
        "s = Sigmoid (x) y = Mul (x, s)",
        f"t = Reshape (x, apart) {SOFTMAXES} y = Reshape (p, rows)",
        "m = ReduceMean (x, last) d = Sub (x, m) p = Pow (d, two) y = Clip (p, low, two)",
        f"y = Scan <num_scan_inputs = 1, body = {ROWS}> (x)",
    ):
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["": 18]>
            g (float[64, 256] x) => (float[64, 256] y)
            <int64[1] last = {{-1}}, float two = {{2.0}}, float low = {{0.5}},
             int64[3] apart = {{256, 4, 16}}, int64[2] rows = {{64, 256}}> {{ {nodes} }}
        """)
        gradients = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
        models_in_groups.append(gradients.SerializeToString())
    return models_in_groups


def fused_groups(path: Path) -> object:
    """The bytes that a session gets; what onnxruntime refuses of them is not taken."""
    from onnxtrain.runtime.files.outline import Outline
    from onnxtrain.runtime.fusion.operators import OPERATORS
    from onnxtrain.runtime.session import devices
    from onnxtrain.runtime.session.fusion import fused
    from onnxtrain.runtime.session.kernels import with_own_kernels

    outline = Outline.of(path.read_bytes())
    both = [] if outline is None else [fused(outline), with_own_kernels(outline)]
    contents = [content for content in both if content is not None]
    x = np.ones((64, 256), np.float32)
    for content in contents:
        with contextlib.suppress(Exception):
            form = devices.Form(content, [], OPERATORS)
            devices.session_of(form, devices.session_options(threads=1)).run(
                None, {"x": x, "y_grad": x}
            )
    return bool(contents)


def column_models(folder: Path) -> list[bytes]:
    """Gradients of recurrent layers, whose loops sessions carry out by columns."""
    del folder
    texts = (
        ("LSTM", 4, "y = LSTM <hidden_size = 48> (x, w, r)"),
        ("GRU", 3, "y = GRU <hidden_size = 48, linear_before_reset = 1> (x, w, r)"),
    )
    return [
        onnxtrain.differentiate(
            onnx.parser.parse_model(f"""
                <ir_version: 9, opset_import: ["": 18]>
                {name} (float[2, 16, 8] x, float[1, {48 * gates}, 8] w,
                float[1, {48 * gates}, 48] r)
                => (float[2, 1, 16, 48] y) {{ {nodes} }}
            """),
            wrt=["w"], of="y", vjp=True,
        ).SerializeToString()
        for name, gates, nodes in texts
    ]  # fmt: skip


def column_loops(path: Path) -> object:
    """The bytes that a session gets; what onnxruntime refuses of them is not taken."""
    from onnxtrain.runtime.files.outline import Outline
    from onnxtrain.runtime.fusion.operators import OPERATORS
    from onnxtrain.runtime.session import devices
    from onnxtrain.runtime.session.column_loops import with_column_loops

    outline = Outline.of(path.read_bytes())
    content = None if outline is None else with_column_loops(outline)
    if content is None:
        return False
    for gates in (4, 3):
        feeds = {
            "x": np.ones((2, 16, 8), np.float32),
            "w": np.ones((1, 48 * gates, 8), np.float32),
            "r": np.ones((1, 48 * gates, 48), np.float32),
            "y_grad": np.ones((2, 1, 16, 48), np.float32),
        }
        with contextlib.suppress(Exception):
            form = devices.Form(content, [], OPERATORS)
            devices.session_of(form, devices.session_options(threads=1)).run(None, feeds)
    return True


def optimizer(path: Path) -> object:
    from onnxtrain.runtime.step.optimizer import Optimizer

    sound = path.parent / "sound"
    made = Module(
        sound / "training_model.onnx", CheckpointState.load_checkpoint(sound / "checkpoint")
    )
    made(X)
    return Optimizer(path, made).step()


def old_model(path: Path) -> object:
    from onnxtrain.compat.ort.old_artifacts import convert_training_model

    return convert_training_model(path, [])


def old_models(folder: Path) -> list[bytes]:
    del folder
    return [(DATA / "broadcasting" / "training_model.onnx").read_bytes()]


def old_optimizers(folder: Path) -> list[bytes]:
    del folder
    return [(DATA / "broadcasting" / "optimizer_model.onnx").read_bytes()]


def old_optimizer(path: Path) -> object:
    from onnxtrain.compat.ort.old_artifacts import convert_optimizer_model

    return convert_optimizer_model(path, [("w", (4, 3))])


def halves(folder: Path) -> list[bytes]:
    """What a gradient model has in its metadata."""
    from onnxtrain.compat.ort import graph_builder
    from onnxtrain.training import OrtModuleGraphBuilder, OrtModuleGraphBuilderConfiguration

    configuration = OrtModuleGraphBuilderConfiguration()
    configuration.initializer_names = configuration.initializer_names_to_train = ["w"]
    builder = OrtModuleGraphBuilder()
    builder.initialize((folder / "predict.onnx").read_bytes(), configuration)
    builder.build()
    model = onnx.load_from_string(builder.get_gradient_model())
    (entry,) = [p for p in model.metadata_props if p.key == graph_builder.METADATA]
    return [entry.value.encode()]


def gradient_halves(path: Path) -> object:
    from onnxtrain.compat.ort import graph_builder

    return graph_builder.embedded({graph_builder.METADATA: _text(path)})


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def label_notes(folder: Path) -> list[bytes]:
    del folder
    return [b'[{"value": "labels", "classes": 3, "ignore_index": -100, "skip": 1}]']


def labels(path: Path) -> object:
    from onnxtrain.artifacts import generate_artifacts
    from onnxtrain.graph.labels import DECLARED

    model = onnx.load(path.parent / "sound" / "model.onnx")
    model.metadata_props.add(key=DECLARED, value=_text(path))
    target = path.parent / "made"
    target.mkdir(exist_ok=True)
    return generate_artifacts(model, ["w"], artifact_directory=target)


def served(folder: Path) -> list[bytes]:
    shutil.copytree(folder / "sound", folder / "served")
    return [(folder / "sound" / "training_model.onnx").read_bytes()]


def serve(path: Path) -> object:
    from onnxtrain.artifacts.device import device_file

    shutil.copy(path, path.parent / "served" / "training_model.onnx")
    return device_file(path.parent / "served")


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(path: Path) -> object:
    return CheckpointState.load_checkpoint(path)


def checkpoint_used(path: Path) -> object:
    """Also what only shows when a model meets the checkpoint."""
    state = CheckpointState.load_checkpoint(path)
    return Module(path.parent / "sound" / "training_model.onnx", state)


def resume(path: Path) -> object:
    trainer, stopping = _trainer(path.parent, path)
    return trainer.fit(X, epochs=3, batch_size=4, callbacks=[stopping], progress=False, resume=True)


def old_checkpoints(folder: Path) -> list[bytes]:
    real = sorted(DATA.glob("*/checkpoint"), key=lambda p: p.stat().st_size)
    return [(folder / "old").read_bytes(), *(p.read_bytes() for p in real[:3] if p.stat().st_size)]


def _sequence(*tensors: TensorProto) -> bytes:
    def varint(value: int) -> bytes:
        return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])

    parts = [t.SerializeToString() for t in tensors]
    return varint(len(parts)) + b"".join(varint(len(p)) + p for p in parts)


def sequences(folder: Path) -> list[bytes]:
    """All files of a directory in one, a line each: which is damaged is up to chance."""
    del folder
    typed = onnx.helper.make_tensor("b", 1, [2], [1.0, 2.0])
    whole = onnx.helper.make_tensor("c", 7, [2], [1, 2])
    raw = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    step = numpy_helper.from_array(np.array([3]), "builtin.step")
    rate = numpy_helper.from_array(np.array([0.1], np.float32), "builtin.initial_learning_rate")
    text = onnx.helper.make_tensor("note", 8, [1], [b"hello"])
    return [_sequence(raw, typed), _sequence(raw, typed, whole), _sequence(step, rate, text)]


FILES = (
    "paramtrain_tensors.pbseq", "paramfrozen_tensors.pbseq", "optim_group0_momentum0_tensors.pbseq",
    "optim_group0_properties.pbseq", "custom_properties.pbseq",
)  # fmt: skip


def directory(path: Path) -> object:
    """The damaged file in each of the roles that a file of the directory has."""
    first, _, settings = sequences(path)
    content = path.read_bytes()
    for role in FILES:
        folder = path.parent / "pbseq"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / FILES[0]).write_bytes(first)
        (folder / FILES[2]).write_bytes(first)
        (folder / FILES[3]).write_bytes(settings)
        (folder / role).write_bytes(content)
        with contextlib.suppress(OnnxTrainError):
            CheckpointState.load_checkpoint(folder)
    return None


def torch_checkpoint(path: Path) -> object:
    from onnxtrain.compat.ort.orttrainer import checkpoint_storage
    from onnxtrain.compat.ort.orttrainer.checkpoint import aggregate_checkpoints

    state = aggregate_checkpoints([path], pytorch_format=False)
    if "user_dict" in state:
        checkpoint_storage.from_serialized_hex(state["user_dict"])
    return state


def torch_checkpoints(folder: Path) -> list[bytes]:
    from onnxtrain.compat.ort.orttrainer.checkpoint_storage import save, to_serialized_hex

    weights = {"w": models.W}
    moments = {"w": {"Moment_1": models.W, "Step": np.array([1], np.int64)}}
    state = {
        "model": {"full_precision": weights}, "optimizer": moments,
        "trainer_options": {"mixed_precision": False}, "train_step_info": {"optimization_step": 1},
    }  # fmt: skip
    user = to_serialized_hex({"epoch": 3, "best": models.W})
    parts = {"w": {"original_dim": list(models.W.shape)}}
    divided = {**state, "trainer_options": {"zero_stage": 1}, "partition_info": parts}
    for name, content in {"whole": state, "divided": divided}.items():
        save({**content, "user_dict": user}, folder / name)
    return [(folder / name).read_bytes() for name in ("whole", "divided")]


# --- adapters -------------------------------------------------------------------------------------


def _adapter(folder: Path):
    from onnxtrain import lora

    return lora.Adapter.of(lora.add(folder / "predict.onnx", rank=1))


def onnx_adapters(folder: Path) -> list[bytes]:
    """An adapter in onnxruntime's own format."""
    from onnxtrain import lora

    lora.save_onnx_adapter(_adapter(folder), folder / "sound.onnx_adapter")
    return [(folder / "sound.onnx_adapter").read_bytes()]


def onnx_adapter(path: Path) -> object:
    from onnxtrain import lora

    return lora.merge(path.parent / "predict.onnx", lora.load_onnx_adapter(path))


def peft_weights(folder: Path) -> list[bytes]:
    """The weights of an adapter as PEFT writes them."""
    from onnxtrain import lora

    lora.save_peft(_adapter(folder), folder / "peft")
    return [(folder / "peft" / "adapter_model.safetensors").read_bytes()]


def peft_settings(folder: Path) -> list[bytes]:
    """Its settings."""
    peft_weights(folder)
    return [(folder / "peft" / "adapter_config.json").read_bytes()]


def peft(path: Path) -> object:
    from onnxtrain import lora

    shutil.copy(path, path.parent / "peft" / path.name)
    return lora.merge(path.parent / "predict.onnx", lora.load_peft(path.parent / "peft"))


def adapted_models(folder: Path) -> list[bytes]:
    """A model whose metadata tell of adapters."""
    from onnxtrain import lora

    return [lora.add(folder / "predict.onnx", rank=1).SerializeToString()]


def adapted(path: Path) -> object:
    from onnxtrain import lora

    return lora.Adapter.of(path)


def training_infos(folder: Path) -> list[bytes]:
    """A model that says how it is trained."""
    from onnxtrain import losses, training_info

    return [training_info.add(folder / "predict.onnx", losses.MSELoss()).SerializeToString()]


def training_info(path: Path) -> object:
    from onnxtrain.training_info import Training

    return Training(path)


def trained_as_it_says(path: Path) -> object:
    """The command: data are matched, a step is run, the model is written."""
    from onnxtrain.cli.training_info import read_data
    from onnxtrain.training_info import Training

    training = Training(path)
    np.savez(path.with_name("rows.npz"), x=X, target=Y)
    rows = read_data(str(path.with_name("rows.npz")), training)
    training.fit(rows, batch_size=4)
    training.save(path.with_name("trained.onnx"))
    return training


# --- data and settings ----------------------------------------------------------------------------


def data(path: Path) -> object:
    from onnxtrain.cli.sources import read

    return read(str(path))


def array(path: Path) -> object:
    from onnxtrain.cli.sources import read

    return read(f"{path},{path}")


def pictures(path: Path) -> object:
    from onnxtrain.cli.match import load_pictures
    from onnxtrain.cli.sources import read
    from onnxtrain.summary import ValueSummary

    folder = path.parent / "pictures" / "cat"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / "1.png")
    value = ValueSummary("x", "float32", ("N", 1, 8, 8))
    return load_pictures(read(str(folder.parent)), value)  # type: ignore[arg-type]


def config(path: Path) -> object:
    from onnxtrain.cli.settings import Settings, read_config, typed

    values = {n: typed(n, v, str(path)) for n, v in read_config(str(path)).items()}
    return Settings(**{"model": "m.onnx", **values}).check()


def run_file(path: Path) -> object:
    from onnxtrain.cli.run_folder import read_about

    return read_about(path)


def steps(path: Path) -> object:
    from onnxtrain.cli.history import read_steps

    return read_steps(path.parent, 100)


def history(path: Path) -> object:
    from onnxtrain.cli.runs import read_history

    return read_history(path)


def histories(folder: Path) -> list[bytes]:
    del folder
    return [b'{"loss": [0.5, 0.25], "lr": [0.001, 0.001]}', b"{}"]


def npz(folder: Path) -> list[bytes]:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, x=X, labels=np.arange(8))
    np.savez_compressed(packed, x=X, labels=np.arange(8))
    del folder
    return [plain.getvalue(), packed.getvalue()]


def npy(folder: Path) -> list[bytes]:
    out = io.BytesIO()
    np.save(out, X)
    del folder
    return [out.getvalue()]


def csv(folder: Path) -> list[bytes]:
    del folder
    return [
        b"a,b,label\n1,2.5,cat\n3,,dog\n4,1e3,cat\n",
        '"ä";b\n1;"x\ny"\n'.encode(),
        b"a\tb\n1\t2",
    ]


def page_csv(folder: Path) -> list[bytes]:
    """The page takes no empty cells."""
    del folder
    return [b"a,b,label\n1,2.5,cat\n3,4,dog\n", b"a\tb\n1\t2", b"1;2\n3;4\n"]


def csv_gz(folder: Path) -> list[bytes]:
    import gzip

    return [gzip.compress(content) for content in csv(folder)]


def parquet(folder: Path) -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet as pq

    table = pa.table({"a": [1, 2, 3], "b": [[1.0], [2.0], [3.0]], "c": ["x", "y", None]})
    pq.write_table(table, folder / "seed.parquet")
    return [(folder / "seed.parquet").read_bytes()]


def row_groups(folder: Path) -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet as pq

    table = pa.table({"a": [1, 2, 3], "b": [[1.0], [2.0], [3.0]], "c": ["x", "y", "z"]})
    pq.write_table(table, folder / "groups.parquet", row_group_size=2)
    return [(folder / "groups.parquet").read_bytes(), *parquet(folder)]


def arrow(folder: Path) -> list[bytes]:
    import pyarrow as pa

    lists = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 2)
    words = pa.array(["x", "y", "x"]).dictionary_encode()
    table = pa.table(
        {"a": [1, 2, 3], "b": lists, "c": [[1], [2], [3]], "d": words, "e": ["x", "y", "z"]}
    )
    contents = []
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        for options in (None, pa.ipc.IpcWriteOptions(compression="lz4")):
            with make(str(folder / "seed.arrow"), table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=2)
            contents.append((folder / "seed.arrow").read_bytes())
    return contents


def tar(folder: Path) -> list[bytes]:
    import tarfile

    picture = png(folder)[0]
    contents = []
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            for number in range(3):
                key = f"{number}" * (1 if number < 2 else 150)
                parts = {"x.npy": npy(folder)[0], "cls": b"2", "json": b"[1, 2]", "png": picture}
                for ending, content in parts.items():
                    info = tarfile.TarInfo(f"./a/{key}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        contents.append(out.getvalue())
    return contents


def stream(path: Path) -> object:
    """All rows of a file, shuffled, as a training reads them."""
    from onnxtrain.data import Stream

    data = Stream(path, map=lambda block: {"x": next(iter(block.values()))}, buffer_rows=3)
    if data.rows > 1000:  # claims of many rows take time, and no memory
        return next(data.batches(["x"], 2, shuffle=True).epoch(0))
    return list(data.batches(["x"], 2, shuffle=True).epoch(0))


def large_groups(path: Path) -> object:
    """One column of row groups that are above the limit, so that its own size is looked at."""
    from onnxtrain.data import Stream

    data = Stream(path, columns={"x": "a"}, largest_chunk=150)
    return [next(data.batches(["x"], 2, shuffle=True).epoch(0)) for _ in range(data.rows > 0)]


def png(folder: Path) -> list[bytes]:
    from PIL import Image

    made = []
    for kind in ("PNG", "GIF", "BMP", "TIFF", "JPEG"):
        out = io.BytesIO()
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(out, kind)
        made.append(out.getvalue())
    del folder
    return made


def texts(folder: Path) -> list[bytes]:
    del folder
    return ["The cat sat.\nÄ line of text\n".encode(), b"\xef\xbb\xbfone"]


def jsonl(folder: Path) -> list[bytes]:
    del folder
    rows = [b'{"text": "a cat", "n": 1}', b'{"prompt": "a", "completion": "b \\u00e4"}', b'"text"']
    return [b"\n".join(rows), rows[0]]


def text_table(folder: Path) -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet as pq

    pq.write_table(pa.table({"text": ["a cat", "on a mat"], "n": [1, 2]}), folder / "t.parquet")
    return [(folder / "t.parquet").read_bytes()]


def documents(path: Path) -> object:
    from onnxtrain.text import read_documents

    return read_documents(path), path.suffix == ".txt" and read_documents(path, by_line=True)


def pair_rows(folder: Path) -> list[bytes]:
    tokenizers(folder)
    return [
        b'{"sentence1": "the cat", "sentence2": "a mat", "score": 1.5}\n' * 2,
        b'{"anchor": "the cat", "positive": "a cat", "negative": "a dog"}',
    ]


def pair_tables(folder: Path) -> list[bytes]:
    tokenizers(folder)
    return [
        b'sentence1,sentence2,score\n"the cat, a dog",a mat,1.5\nnow,then,0\n',
        b"anchor,positive,negative\r\nthe cat,a cat,a dog\r\n",
    ]


def pairs(path: Path) -> object:
    from onnxtrain.text import LanguageInputs, similarity_rows

    inputs = LanguageInputs("ids", None, None, None, {"ids": np.dtype(np.int64)}, None)
    return similarity_rows(path, path.parent / "seed.json", inputs)


def tokenizers(folder: Path) -> list[bytes]:
    from tests.text.models import tokenizer_json

    return [Path(tokenizer_json(folder / "seed.json")).read_bytes()]


def tokenizer(path: Path) -> object:
    from onnxtrain.text import load_tokenizer

    return load_tokenizer(path).encode(["the cat", "a mät"])


def tokenizer_settings(folder: Path) -> list[bytes]:
    from tests.text.models import tokenizer_json

    tokenizer_json(folder / "tokenizer.json")
    return [b'{"eos_token": "<eos>", "pad_token": {"content": "<pad>"}, "bos_token": null}']


def tokenizer_folder(path: Path) -> object:
    return tokenizer(path.parent)


SETTINGS = {"loss": "mse", "lr": 0.1, "epochs": 3, "freeze": ["a", "b"], "resume": True}


def toml(folder: Path) -> list[bytes]:
    del folder
    return [
        b'loss = "mse"\nlr = 1e-3\nepochs = 3\nfreeze = ["a", "b*"]\nresume = false\nseed = 0x1f\n'
    ]


def yaml(folder: Path) -> list[bytes]:
    del folder
    return [b"loss: mse\nlr: 1e-3\nepochs: 3\nfreeze: [a, 'b*']\nresume: no\nbatch-size: 0x10\n"]


def about(folder: Path) -> list[bytes]:
    del folder
    return [json.dumps({"model_sha256": "0" * 64, "settings": SETTINGS}).encode()]


def step_table(folder: Path) -> list[bytes]:
    del folder
    return [b"step,loss,lr\n1,0.5,0.001\n2,nan,0.001\n"]


# --- JavaScript -----------------------------------------------------------------------------------


class Node:
    """A process of Node that reads files as the page and the npm package do."""

    SECONDS = 120
    """To wait for an answer; the machine may be busy."""

    def __init__(self) -> None:
        command = [tools.node(), str(tools.SCRIPTS / "fuzz.mjs"), str(tools.STATIC)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def read(self, kind: str, path: Path) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {path}\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], self.SECONDS)
        if not ready:
            raise TimeoutError(f"no answer of Node for {self.SECONDS} s")
        answer = json.loads(self._process.stdout.readline())
        if answer["outcome"] == "refused":
            raise RefusedError(answer["message"])
        if answer["outcome"] == "raw":
            raise RuntimeError(answer["message"])
        return answer


class RefusedError(OnnxTrainError):
    """JavaScript's own error."""


@functools.cache
def node() -> Node:
    return Node()


def javascript(kind: str, name: str, form: str, seeds: Callable[[Path], list[bytes]]) -> Parser:
    """A parser of JavaScript's; its process is started before memory is limited."""

    def started(folder: Path) -> list[bytes]:
        node()
        return seeds(folder)

    return Parser(name, form, started, lambda path: node().read(kind, path), 2, "node")


PARSERS: dict[str, Parser] = {
    "checkpoint": Parser("c", "safetensors", resumable, checkpoint),
    "checkpoint in a module": Parser("c", "safetensors", resumable, checkpoint_used, 20),
    "resume": Parser("c", "safetensors", resumable, resume, 50),
    "old checkpoint": Parser("c", "flatbuffers", old_checkpoints, checkpoint),
    "old directory": Parser("c", "protobuf", sequences, directory, 2),
    "trainer checkpoint": Parser("c", "safetensors", torch_checkpoints, torch_checkpoint),
    "model": Parser("m.onnx", "model", forward_models, load, 20),
    "external data": Parser("m.onnx", "model", external_models, load, 20),
    "differentiate": Parser("m.onnx", "model", forward_models, differentiate, 50),
    "generate_artifacts": Parser("m.onnx", "model", forward_models, generate, 100),
    "quantize": Parser("m.onnx", "model", forward_models, quantize, 20),
    "prepare qat": Parser("m.onnx", "model", forward_models, prepare_qat, 20),
    "convert qat": Parser("m.onnx", "model", prepared_models, convert_qat, 20),
    "inspect": Parser("m.onnx", "model", forward_models, inspect, 50),
    "new head": Parser("m.onnx", "model", photo_models, new_head, 20),
    "preprocessor_config.json": Parser(
        "preprocessor_config.json", "json", image_settings, described_images, 50
    ),
    "module": Parser("m.onnx", "model", content_of("sound/training_model.onnx"), module, 20),
    "module in ort format": Parser("m.ort", "flatbuffers", ort_models, module, 50),
    "few bits": Parser("m.onnx", "model", few_bit_models, few_bits),
    "lent weights": Parser("m.onnx", "model", lent_models, lent),
    "blocks": Parser("m.onnx", "model", blocked_models, blocked),
    "fused": Parser("m.onnx", "model", fused_models, fused_groups),
    "columns": Parser("m.onnx", "model", column_models, column_loops),
    "export": Parser("m.onnx", "model", content_of("sound/eval_model.onnx"), export, 4),
    "optimizer": Parser("m.onnx", "model", content_of("sound/optimizer_model.onnx"), optimizer, 20),
    "old artifact": Parser("m.onnx", "protobuf", old_models, old_model, 200),
    "old optimizer": Parser("m.onnx", "protobuf", old_optimizers, old_optimizer, 50),
    "gradient model": Parser("p.json", "json", halves, gradient_halves, 2),
    "labels of a loss": Parser("l.json", "json", label_notes, labels, 100),
    "serve": Parser("m.onnx", "model", served, serve, 20),
    "onnx_adapter": Parser("a.onnx_adapter", "flatbuffers", onnx_adapters, onnx_adapter, 4),
    "PEFT weights": Parser("adapter_model.safetensors", "safetensors", peft_weights, peft, 4),
    "PEFT settings": Parser("adapter_config.json", "json", peft_settings, peft, 4),
    "adapted model": Parser("m.onnx", "model", adapted_models, adapted, 4),
    "training info": Parser("m.onnx", "model", training_infos, training_info, 100),
    "trained as it says": Parser("m.onnx", "model", training_infos, trained_as_it_says, 100),
    "npz": Parser("d.npz", "npz", npz, data),
    "npy": Parser("d.npy", "npy", npy, array),
    "csv": Parser("d.csv", "text", csv, data),
    "csv.gz": Parser("d.csv.gz", "", csv_gz, data),
    "parquet": Parser("d.parquet", "", parquet, data, 2),
    "streamed parquet": Parser("d.parquet", "", row_groups, stream, 4),
    "parquet footer": Parser("d.parquet", "", row_groups, large_groups, 4),
    "streamed arrow": Parser("d.arrow", "flatbuffers", arrow, stream, 2),
    "streamed tar": Parser("d.tar", "tar", tar, stream, 2),
    "streamed csv": Parser("d.csv", "text", csv, stream),
    "pictures": Parser("d.png", "", png, pictures),
    "txt": Parser("d.txt", "text", texts, documents),
    "jsonl": Parser("d.jsonl", "json", jsonl, documents),
    "jsonl of pairs": Parser("p.jsonl", "json", pair_rows, pairs, 2),
    "csv of pairs": Parser("p.csv", "text", pair_tables, pairs, 2),
    "parquet of text": Parser("d.parquet", "", text_table, documents, 2),
    "tokenizer.json": Parser("tokenizer.json", "json", tokenizers, tokenizer, 2),
    "tokenizer_config.json": Parser(
        "tokenizer_config.json", "json", tokenizer_settings, tokenizer_folder, 2
    ),
    "toml": Parser("c.toml", "text", toml, config),
    "yaml": Parser("c.yaml", "text", yaml, config, 2),
    "run.json": Parser("run.json", "json", about, run_file),
    "steps.csv": Parser("steps.csv", "text", step_table, steps),
    "history.json": Parser("history.json", "json", histories, history),
    "JavaScript: checkpoint": javascript("checkpoint", "c", "safetensors", resumable),
    "JavaScript: device.json": javascript(
        "facts", "device.json", "json", content_of("sound/device.json")
    ),
    "JavaScript: model": javascript("model", "m.onnx", "model", forward_models),
    "JavaScript: npz": javascript("data", "d.npz", "npz", npz),
    "JavaScript: npy": javascript("data", "d.npy", "npy", npy),
    "JavaScript: csv": javascript("data", "d.csv", "text", page_csv),
}  # fmt: skip
