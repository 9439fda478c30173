"""The training model cut into pieces: what goes where, and that it computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain import artifacts, optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import ModelFileError
from onnxtrain.runtime.files.onnxfile import ModelFile, tensor_type
from onnxtrain.runtime.session import cutting
from onnxtrain.runtime.session.cut_session import share_arena
from onnxtrain.runtime.session.cutting import Template, cut, cut_by_nodes, type_proto
from onnxtrain.runtime.session.options import ALLOCATORS
from onnxtrain.runtime.step.pieces import Pieces
from tests.runtime import test_real_artifacts as convolutional

WIDTH = 16


def tied(folder):
    """Four layers, the second weight used twice, a value that is a result and read again."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        net (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y)
        {{
            a = MatMul(x, w1)  b = Tanh(a)
            c = MatMul(b, w2)  d = Add(c, b2)  e = Tanh(d)
            f = MatMul(e, w2)  g = Mul(f, e)
            h = MatMul(g, w3)  y = Add(h, b3)
        }}"""
    )
    rng = np.random.default_rng(0)
    for name in ("w1", "b2", "w2", "b3", "w3"):
        shape = (WIDTH, WIDTH) if name[0] == "w" else (WIDTH,)
        value = rng.normal(size=shape).astype(np.float32) * 0.3
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    artifacts.generate_artifacts(
        model,
        requires_grad=["w1", "b2", "w2", "b3", "w3"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.adamw(),
        artifact_directory=folder,
        additional_output_names=["y"],
    )


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(count, WIDTH)).astype(np.float32) for _ in range(2)]


def images(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(count, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, count)]


def dropout(folder):
    convolutional.generate(folder, dropout=True)


MODELS = {
    "tied": (tied, rows),
    "batch normalization": (convolutional.generate, images),
    "dropout": (dropout, images),
}


@pytest.fixture(params=[(m, c) for m in MODELS for c in ({"limit": 1}, {"nodes": 5})], ids=str)
def made(request, tmp_path):
    """Two modules on the same artifacts: one in pieces, one whole, and how to make a batch."""
    name, ways = request.param
    write, batch = MODELS[name]
    write(tmp_path)
    return [module(tmp_path, **ways), module(tmp_path)], batch


def module(folder, **ways):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    found = Module(folder / "training_model.onnx", state)
    if ways:
        found.gradient_step.use(Pieces(found.gradient_step, **ways))
    return found


def gradients(module):
    store = module.state.training_state.gradients
    return {name: store.view(name).copy() for name in store}


def same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_allclose(b[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_pieces_compute_what_the_whole_does(made):
    """Loss, other results, gradients and running statistics, also when the batch size changes."""
    (cut_up, whole), batch = made
    assert len(cut_up.gradient_step.pieces.pieces) > 2
    for step, size in enumerate((4, 4, 7)):
        values = batch(size, step)
        results = []
        for each in (cut_up, whole):
            each.lazy_reset_grad()
            found = each(*values)
            results.append(found if isinstance(found, tuple) else (found,))
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        same(gradients(whole), gradients(cut_up))
        frozen = [
            {n: m.state.training_state.frozen.view(n) for n in m.state.training_state.frozen}
            for m in (whole, cut_up)
        ]
        same(*frozen)


def test_pieces_add_to_gradients(made):
    (cut_up, whole), batch = made
    for each in (cut_up, whole):
        each.lazy_reset_grad()
        for size in (4, 5, 5):
            each(*batch(size, size))
    same(gradients(whole), gradients(cut_up))
    found = cut_up.gradient_step.gradients.buffers["F32"].data
    assert np.isfinite(found).all()


def test_gradients_are_complete_when_a_piece_is(made):
    """What happens to the buffer after a piece has run no longer matters to later pieces."""
    (cut_up, whole), batch = made
    pieces, data = cut_up.gradient_step.pieces, cut_up.gradient_step.gradients.buffers["F32"].data
    sent = {}

    def take(index):
        for start, stop in pieces.ranges[index]:
            sent[start, stop] = data[start:stop].copy()
            data[start:stop] = np.nan

    pieces.after = take
    for each in (cut_up, whole):
        each.lazy_reset_grad()
        each(*batch(6))
    assert np.isnan(data).all(), "every element was sent"
    for (start, stop), values in sent.items():
        data[start:stop] = values
    same(gradients(whole), gradients(cut_up))


def test_every_gradient_and_node_has_one_piece(made):
    (cut_up, _), _ = made
    train = cut_up.gradient_step
    model = train.artifact.model
    produced = {o: i for i, n in enumerate(model.nodes) for o in n.outputs}
    sizes = {g: train.gradients.specs[p].nbytes for p, g in train.gradient_names.items()}
    results = [*train.artifact.user_outputs, *train.artifact.states.values()]
    total = sum(sizes.values())
    limits = (1, total / 5, total / 2, total - 1, total, 10 * total)
    cuts = {limit: cut(model, results, sizes, limit) for limit in limits}
    for limit, pieces in cuts.items():
        assert len(pieces) <= -(-total // limit)
        assert (len(pieces) == 1) == (limit >= total)
        assert pieces[0].results
    for most in (1, 7, 1000):
        cuts[-most] = cut_by_nodes(model, results, list(sizes), most)
        fixed = frozenset.intersection(*(p.nodes for p in cuts[-most]))
        assert len(cuts[-most]) == 1 or all(len(p.nodes - fixed) <= most for p in cuts[-most])
    for pieces in cuts.values():
        assert sorted(g for p in pieces for g in p.gradients) == sorted(sizes)
        assert sorted(r for p in pieces for r in p.results) == sorted(results)
        assert set().union(*(p.nodes for p in pieces)) == set(range(len(model.nodes)))
        given = set()
        for piece in pieces:
            assert set(piece.takes) <= given, "made by an earlier piece"
            given |= set(piece.gives)
            assert {produced[g] for g in (*piece.gradients, *piece.gives)} <= piece.nodes
        assert given == {n for p in pieces for n in p.takes}, "nothing is passed on for nobody"


def test_a_long_model_is_cut_by_itself(tmp_path, monkeypatch):
    """Its sessions are small; what it computes is the same, and small batches stay in pieces."""
    tied(tmp_path)
    whole = module(tmp_path)
    monkeypatch.setattr(cutting, "MANY_NODES", 10)
    monkeypatch.setattr(cutting, "NODES_OF_A_PIECE", 6)
    long = module(tmp_path)
    assert len(long.gradient_step.session.sessions) > 2
    losses = [each(*rows(4)) for each in (whole, long)]
    for one, other in zip(*losses, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    same(gradients(whole), gradients(long))
    assert long.gradient_step.sessions.current is long.gradient_step.sessions.usual


def test_gradients_near_the_loss_come_first_whatever_the_order_of_nodes(tmp_path):
    tied(tmp_path)
    train = module(tmp_path, limit=1).gradient_step
    assert train.pieces.parameters(0)[-1] in {"w3", "b3"}
    assert train.pieces.parameters(len(train.pieces.pieces) - 1) == ["w1"]
    ranges = sorted(r for each in train.pieces.ranges for r in each)
    size = train.gradients.buffers["F32"].data.size
    assert [a for a, _ in ranges] == [0, *(b for _, b in ranges[:-1])]
    assert ranges[-1][1] == size


def test_buckets_have_about_the_same_size():
    """Ten layers of one size each, one chain."""
    text = " ".join(
        f"h{i} = Mul(h{i - 1}, h{i - 1}) g{i} = Neg(h{i})" for i in range(1, 11)
    ).replace("h0", "x")
    outputs = ", ".join(f"float[N] g{i}" for i in range(1, 11))
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[N] x) => ({outputs}) {{ {text} }}'
    )
    file = ModelFile.load(model.SerializeToString())
    sizes = {f"g{i}": 100 for i in range(1, 11)}
    pieces = cut(file, [], sizes, 250)
    assert [len(p.gradients) for p in pieces] == [2, 3, 2, 3]
    assert [p.takes for p in pieces] == [(), ("h2",), ("h5",), ("h7",)]
    sizes["g1"] = 1000  # one that is larger than any bucket stands alone
    assert cut(file, [], sizes, 500)[0].gradients == ("g1",)


def test_a_session_per_piece_trains_like_one(tmp_path):
    convolutional.generate(tmp_path)
    ends = []
    for ways in ({"limit": 1}, {}):
        each = module(tmp_path, **ways)
        optimizer = Optimizer(tmp_path / "optimizer_model.onnx", each)
        for step in range(10):
            each.lazy_reset_grad()
            each(*images(8, step))
            optimizer.step()
        ends.append({n: p.data.copy() for n, p in each.state.parameters})
    same(*ends)


def test_pieces_share_their_memory(tmp_path):
    tied(tmp_path)
    train = module(tmp_path, limit=1).gradient_step
    for session in train.pieces.session.sessions:
        assert session.get_session_options().get_session_config_entry(ALLOCATORS) == "1"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(ALLOCATORS, "0")
    share_arena(options)
    assert options.get_session_config_entry(ALLOCATORS) == "0", "as the user said"
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    share_arena(options)
    with pytest.raises(RuntimeError, match=ALLOCATORS):
        options.get_session_config_entry(ALLOCATORS)


def test_back_to_the_whole(tmp_path):
    tied(tmp_path)
    both, whole = module(tmp_path, limit=1), module(tmp_path)
    first = both.gradient_step.pieces
    for way in (first, None, first):
        both.gradient_step.use(way, keep=True)
        for each in (both, whole):
            each.lazy_reset_grad()
            each(*rows(3))
        same(gradients(whole), gradients(both))


def test_subgraphs_and_sequences_are_passed_on():
    """A branch that reads outer values, and a sequence made in one piece and read in another."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[N, 4] x, bool on) => (float[N, 2] first, float[N, 4] ga, float[N, 2] gb)
        <int64 two = {2}, int64 one = {1}>
        {
            parts = SplitToSequence <axis = 1> (x, two)
            first = SequenceAt(parts, one)
            inner = Exp(x)
            ga = Neg(inner)
            h = Neg(ga)
            k = If (on) <
                then_branch = t () => (float[N, 4] s) { s = Mul(inner, h) },
                else_branch = e () => (float[N, 4] r) { r = Identity(h) }
            >
            part = SequenceAt(parts, one)
            more = SplitToSequence <axis = 1> (k, two)
            other = SequenceAt(more, one)
            gb = Mul(part, other)
        }"""
    )
    data = model.SerializeToString()
    pieces = cut(ModelFile.load(data), ["first"], {"ga": 8, "gb": 8}, 8)
    assert [p.gradients for p in pieces] == [("ga",), ("gb",)]
    assert set(pieces[1].takes) == {"parts", "inner", "ga"}
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    template = Template(ModelFile.load(data), own={"ga", "gb"})
    feed, known, found = {"x": x, "on": np.array(True)}, {}, {}
    for piece in pieces:
        session = onnxruntime.InferenceSession(template.piece(piece, known))
        values = session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})
        for info, value in zip(session.get_outputs(), values, strict=True):
            known[info.name] = type_proto(info.type, info.shape)
            found[info.name] = feed[info.name] = value
    whole = onnxruntime.InferenceSession(data).run(["ga", "gb"], {"x": x, "on": np.array(True)})
    np.testing.assert_allclose(found["ga.own"], whole[0])
    np.testing.assert_allclose(found["gb"], whole[1], rtol=1e-6)


def test_types():
    assert type_proto("tensor(int64)", ["N", 3]).encode() == tensor_type(7, ["N", 3]).encode()
    nested = onnx.TypeProto.FromString(type_proto("optional(seq(tensor(bool)))", []).encode())
    assert nested.optional_type.elem_type.sequence_type.elem_type.tensor_type.elem_type == 9
    with pytest.raises(ModelFileError, match="cannot be passed on"):
        type_proto("map(int64,tensor(float))", [])
