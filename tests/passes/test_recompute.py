"""Recomputation: the same gradients, fewer values alive, and no draw repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain import artifacts, onnxblock, optim
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import UnknownNameError
from onnxtrain.passes import check_recompute
from onnxtrain.passes.segments import RecomputeError

pytestmark = pytest.mark.slow

WIDTH, LAYERS = 128, 6  # wide enough for a value not to count as small
Array = np.ndarray[Any, Any]


def network(
    layer: str, *, layers: int = LAYERS, opset: int = 18, extra: str = ""
) -> onnx.ModelProto:
    """Layers in a row, each from `x{i}` to `x{i+1}` with the weight `w{i}`, then a mean."""
    rng = np.random.default_rng(0)
    body = "\n".join(layer.replace("@in", f"x{i}").replace("@", f"{i}") for i in range(layers))
    body = body.replace("END", "")
    for i in reversed(range(layers)):
        body = body.replace(f"out{i}", f"x{i + 1}")
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[N, {WIDTH}] x0{extra}) => (float loss)
        <float half = {{0.5}}, bool yes = {{1}}, float third = {{0.3}}, float two = {{2}},
         int64[1] axis = {{-1}}, int64[2] flat = {{-1, {WIDTH}}}> {{
            {body}
            square = Mul(x{layers}, x{layers})
            loss = ReduceMean <keepdims = 0> (square)
        }}""")
    for i in range(layers):
        for name, shape in ((f"w{i}", (WIDTH, WIDTH)), (f"s{i}", (WIDTH,)), (f"b{i}", (WIDTH,))):
            if any(name in node.input for node in model.graph.node):
                values = rng.normal(0, 1 / math.sqrt(WIDTH), shape).astype(np.float32)
                model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


GELU = """
    h@ = MatMul(@in, w@)
    e@ = Erf(h@)
    g@ = Mul(h@, e@)
    n@ = LayerNormalization <axis = -1> (g@, s@, b@)
    out@ = Add(n@, @in)
"""
TANH = """
    h@ = MatMul(@in, w@)  t@ = Tanh(h@)  p@ = Softmax <axis = -1> (t@)
    m@ = Mul(p@, t@)  out@ = Add(m@, @in)
"""
VIEWED = "v@ = Reshape(@in, flat)  h@ = MatMul(v@, w@)  t@ = Sigmoid(h@)  out@ = Reshape(t@, flat)"
BRANCHED = """
    a@ = MatMul(@in, w@)  l@ = Tanh(a@)  r@ = Sigmoid(a@)
    m@ = Mul(l@, r@)  k@ = Add(m@, x0)  out@ = Tanh(k@)
"""
DROPPED = """
    h@ = MatMul(@in, w@)  t@ = Tanh(h@)
    d@ = Dropout <seed = 1@> (t@, third, yes)  out@ = Add(d@, @in)
"""
NETWORKS = {"gelu": GELU, "tanh": TANH, "viewed": VIEWED, "branched": BRANCHED}
HOWS: list[Any] = [1, 2, 3, 6, "auto", "cheap", ["x2", "x4"], ["x[135]"]]


def run(model: onnx.ModelProto, feeds: dict[str, Array], **settings: Any) -> list[Array]:
    """Outputs of one run on onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for name, value in settings.items():
        setattr(options, name, value)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def batch(rows: int = 300) -> dict[str, Array]:
    return {"x0": np.random.default_rng(1).normal(size=(rows, WIDTH)).astype(np.float32)}


def agree(got: Array, expected: Array, tolerance: float = 2e-6) -> None:
    """Equal up to rounding, measured by the largest element; which must not be nothing."""
    scale = float(np.abs(expected).max())
    assert scale > 1e-12
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


def most_alive(model: onnx.ModelProto, feeds: dict[str, Array], folder: Path, order: str) -> int:
    """Most bytes of node results alive at once, in the order that onnxruntime really ran.

    Names and order come from its profile, edges from the graph it made of the model.
    """
    path = folder / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    options.optimized_model_filepath = str(path)
    options.execution_order = getattr(onnxruntime.ExecutionOrder, order)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    nodes = {n.name: n for n in onnx.load(path).graph.node}
    ran, size = [], dict[str, int]()
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") != "Node" or name == event["name"] or name not in nodes:
            continue
        ran.append(nodes[name])
        outputs = [o for o in nodes[name].output if o]
        for output, described in zip(outputs, event["args"]["output_type_shape"]):
            ((kind, dims),) = described.items()
            size[output] = math.prod(dims) * {"bool": 1, "int64": 8}.get(kind, 4)
    return _peak(ran, size, {o.name for o in model.graph.output})


def _peak(ran: Sequence[onnx.NodeProto], size: dict[str, int], outputs: set[str]) -> int:
    views, last = dict[str, str](), dict[str, int]()
    for i, node in enumerate(ran):
        if node.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
            views[node.output[0]] = views.get(node.input[0], node.input[0])
        for name in (*node.input, *node.output):
            last[views.get(name, name)] = i
    alive = peak = 0
    for i, node in enumerate(ran):
        own = [o for o in node.output if o in size and o not in views and o not in outputs]
        alive += sum(size[o] for o in own)
        peak = max(peak, alive)
        read = {views.get(n, n) for n in (*node.input, *node.output)}
        gone = [n for n in read if last[n] == i and n in size and n not in outputs]
        alive -= sum(size[n] for n in gone)
    return peak


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_the_same(kind: str, how: Any) -> None:
    model = network(NETWORKS[kind])
    if kind == "viewed" and isinstance(how, list):
        how = [name.replace("x", "t") for name in how]  # the Reshape does nothing: x is t
    plain = run(onnxtrain.differentiate(model), batch())
    again = onnxtrain.differentiate(model, recompute=how)
    onnx.checker.check_model(again, full_check=True)
    for expected, got in zip(plain, run(again, batch()), strict=True):
        agree(got, expected)


@pytest.mark.parametrize("order", ["DEFAULT", "PRIORITY_BASED"])
@pytest.mark.parametrize("kind", ["gelu", "tanh", "branched"])
def test_less_is_alive(kind: str, order: str, tmp_path: Path) -> None:
    model = network(NETWORKS[kind], layers=12)
    feeds = batch(2000)
    before, after = (tmp_path / "before", tmp_path / "after")
    before.mkdir()
    after.mkdir()
    plain = most_alive(onnxtrain.differentiate(model), feeds, before, order)
    again = most_alive(onnxtrain.differentiate(model, recompute="auto"), feeds, after, order)
    assert again < 0.6 * plain


def test_onnxruntime_does_not_merge_the_copies(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    model = onnxtrain.differentiate(network(TANH), recompute=3)
    run(
        model, batch(), optimized_model_filepath=str(path),
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    )  # fmt: skip
    copies = [n.name for n in model.graph.node if n.op_type == "Tanh" and "again" in n.name]
    left = {n.name for n in onnx.load(path).graph.node}
    assert len(copies) == 4  # of six layers, those of the last third are not repeated
    assert left.issuperset(copies)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_gates_hold_for_what_is_no_number(poison: float) -> None:
    model, feeds = network(TANH), batch()
    feeds["x0"][7, 3] = poison
    plain = run(onnxtrain.differentiate(model), feeds)
    again = run(onnxtrain.differentiate(model, recompute=3), feeds)
    for expected, got in zip(plain, again, strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


def test_only_named_values_and_the_last_segment_are_kept() -> None:
    model = onnxtrain.differentiate(network(TANH), recompute=["x2", "x4"])
    forward = {f"{stem}{i}" for i in range(4) for stem in "htpm"} | {"x1", "x3"}
    grown = [n for n in model.graph.node if "grad" in n.name or "again" in n.name]
    assert not forward.intersection(v for n in grown for v in n.input)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5])
def test_masks_are_drawn_once(ratio: float) -> None:
    model = network(DROPPED)
    for tensor in model.graph.initializer:
        if tensor.name == "third":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(ratio), "third"))
    plain = onnxtrain.differentiate(model)
    again = onnxtrain.differentiate(model, recompute=3)
    count = sum(n.op_type == "Dropout" for n in again.graph.node)
    assert count == sum(n.op_type == "Dropout" for n in plain.graph.node) == LAYERS
    for expected, got in zip(run(plain, batch()), run(again, batch()), strict=True):
        agree(got, expected)


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.3, 0.5, 0.9])
def test_what_is_dropped_again_is_equal_to_the_bit(ratio: float) -> None:
    model = network(DROPPED)
    for tensor in model.graph.initializer:
        if tensor.name == "third":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(ratio), "third"))
    again = onnxtrain.differentiate(model, recompute=3)
    dropout = next(n for n in again.graph.node if n.op_type == "Dropout")
    copy = next(
        n for n in again.graph.node
        if n.op_type == "Div" and n.name.startswith(f"onnxtrain.recompute/{dropout.name}/")
    )  # fmt: skip
    for name in (dropout.output[0], copy.output[0]):
        again.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    first, second = run(again, batch())[-2:]
    np.testing.assert_array_equal(first, second)


def test_other_draws_and_bodies_are_kept() -> None:
    noisy = """
        r@ = RandomNormalLike <seed = 1@.0> (@in)  z@ = Mul(r@, @in)
        h@ = MatMul(z@, w@)  out@ = Tanh(h@)
    """
    model = network(noisy)
    plain, again = (onnxtrain.differentiate(model, recompute=how) for how in (None, 3))
    assert sum(n.op_type == "RandomNormalLike" for n in again.graph.node) == LAYERS
    for expected, got in zip(run(plain, batch()), run(again, batch()), strict=True):
        agree(got, expected)


def test_vector_jacobian_form() -> None:
    model = network(GELU)
    feeds = batch() | {"loss_grad": np.array(2, np.float32)}
    plain, again = (onnxtrain.differentiate(model, vjp=True, recompute=h) for h in (None, "auto"))
    for expected, got in zip(run(plain, feeds), run(again, feeds), strict=True):
        agree(got, expected)


def test_gradients_of_inputs_and_a_loss_that_is_linear() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 64] x) => (float loss) {
            a = Tanh(x)  b = Exp(a)  c = Sigmoid(b)  d = Tanh(c)  e = Neg(d)
            loss = ReduceSum <keepdims = 0> (e)
        }""")
    feeds = {"x": np.random.default_rng(2).normal(size=(300, 64)).astype(np.float32)}
    plain, again = (
        onnxtrain.differentiate(model, wrt=["x"], recompute=how) for how in (None, ["b", "d"])
    )
    assert any("again" in n.name for n in again.graph.node)
    for expected, got in zip(run(plain, feeds), run(again, feeds), strict=True):
        agree(got, expected)


# -- artifacts ---------------------------------------------------------------------------------


def train(model: onnx.ModelProto, folder: Path, how: Any, **options: Any) -> dict[str, Array]:
    """Parameters after three steps, in one graph when `step_model` is given."""
    folder.mkdir()
    names = [t.name for t in model.graph.initializer if t.name[0] in "wsb" and t.dims]
    artifacts.generate_artifacts(
        model, requires_grad=names, optimizer=optim.sgd(), artifact_directory=folder,
        recompute=how, **options,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    if options.get("step_model"):
        from onnxtrain.api import Trainer

        trainer = Trainer.from_directory(str(folder), learning_rate=0.1)
        for _ in range(3):
            trainer._engine.run((batch()["x0"],))
        return {n: np.array(trainer.state.parameters[n].data) for n in names}
    from onnxtrain.api import Optimizer

    module = Module(str(folder / "training_model.onnx"), state)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(0.1)
    for _ in range(3):
        module(batch()["x0"])
        optimizer.step()
        module.lazy_reset_grad()
    return {n: np.array(state.parameters[n].data) for n in names}


@pytest.mark.parametrize("step_model", [False, True])
@pytest.mark.parametrize("kind", ["gelu", "viewed"])
def test_artifacts_train_alike(kind: str, step_model: bool, tmp_path: Path) -> None:
    model = network(NETWORKS[kind])
    plain = train(model, tmp_path / "plain", None, step_model=step_model)
    again = train(model, tmp_path / "again", 3, step_model=step_model)
    for name, expected in plain.items():
        agree(again[name], expected, 1e-5)
    files = ["training_model", *(["step_model"] if step_model else [])]
    for file in files:
        nodes = onnx.load(tmp_path / "again" / f"{file}.onnx").graph.node
        assert sum("_again" in n.name for n in nodes) >= 4, file


def test_running_statistics_are_updated_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    body = "".join(
        f"c{i} = Conv <pads = [1, 1, 1, 1]> (x{i}, w{i})"
        f" n{i}, m{i}_, v{i}_ = BatchNormalization <training_mode = 1> "
        f"(c{i}, s{i}, b{i}, m{i}, v{i})"
        f" x{i + 1} = Relu(n{i})"
        for i in range(4)
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 8, 8, 8] x0) => (float loss) {{ {body}
            loss = ReduceMean <keepdims = 0> (x4) }}""")
    for i in range(4):
        arrays = {
            "w": rng.normal(0, 0.2, (8, 8, 3, 3)), "s": np.ones(8) + i, "b": rng.normal(size=8),
            "m": np.zeros(8) + 0.1 * i, "v": np.ones(8) + 0.1 * i,
        }  # fmt: skip
        for stem, array in arrays.items():
            tensor = onnx.numpy_helper.from_array(array.astype(np.float32), f"{stem}{i}")
            model.graph.initializer.append(tensor)
    x = rng.normal(size=(16, 8, 8, 8)).astype(np.float32)
    states = []
    for how in (None, 4):
        folder = tmp_path / str(how)
        folder.mkdir()
        artifacts.generate_artifacts(
            model, requires_grad=["w*", "s*", "b*"], artifact_directory=folder, recompute=how
        )
        state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        module = Module(str(folder / "training_model.onnx"), state)
        module(x)
        gradients = [np.array(state.parameters[f"w{i}"].grad) for i in range(4)]
        running = [np.array(state.parameters[f"{s}{i}"].data) for s in "mv" for i in range(4)]
        states.append([*gradients, *running])
    for expected, got in zip(*states, strict=True):
        agree(got, expected, 1e-5)
    nodes = onnx.load(tmp_path / "4" / "training_model.onnx").graph.node
    assert any("_again" in n.name for n in nodes)


def test_training_block() -> None:
    class Block(onnxblock.TrainingBlock):
        recompute = 3

        def build(self, loss: str) -> str:
            return loss

    model, block = network(TANH), Block()
    block.requires_grad("w0")
    with onnxblock.base(model):
        block("loss")
    training, _ = block.to_model_proto()
    assert any("_again" in n.name for n in training.graph.node)


# -- what cannot be used ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", [0, -1, True, 1.5, "deep", [], [1], b"x0"])
def test_wrong_values(how: Any) -> None:
    with pytest.raises(RecomputeError, match="recompute="):
        check_recompute(how)


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="nowhere"):
        onnxtrain.differentiate(network(TANH), recompute=["nowhere"])


def test_nothing_to_recompute() -> None:
    model = network(TANH)
    assert onnxtrain.differentiate(model, recompute=1) == onnxtrain.differentiate(model)
