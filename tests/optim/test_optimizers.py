"""Every optimizer, flat and over sequences, against PyTorch's or a few lines of numpy."""

import base64
import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from onnxtrain import optim

SHAPES = {"a": (3, 4), "b": (4,), "c": (2, 3, 5), "s": ()}
STEPS = 100


def gradients(steps=STEPS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            n: np.asarray(rng.normal(size=s) * rng.uniform(0.1, 2), np.float32)
            for n, s in SHAPES.items()
        }
        for _ in range(steps)
    ]


def start(seed=1):
    rng = np.random.default_rng(seed)
    return {n: np.asarray(rng.normal(size=s), np.float32) for n, s in SHAPES.items()}


def rate(step):
    return np.float32(0.05 / np.sqrt(step))


def session(model):
    proto = ir.to_proto(model)
    if all(
        i.type.tensor_type.HasField("shape") or i.type.HasField("sequence_type")
        for i in proto.graph.input
    ):  # the checker refuses inputs of any rank
        onnx.checker.check_model(proto, full_check=True)
    assert {n.domain for n in proto.graph.node} == {""}
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def run_sequence(optimizer, steps=STEPS, opset=18):
    """The predecessor's loop: sequences in, sequences out."""
    values = start()
    names = list(values)
    run = session(optim.sequence_model(optimizer, [(n, SHAPES[n]) for n in names], opset))
    inputs = [i.name for i in run.get_inputs()]
    assert inputs[:4] == ["learning_rate", "step", "params", "gradients"]
    declared = inputs[4:]
    states = {
        s: [np.zeros(optimizer.state_shape(s, SHAPES[n]), np.float32) for n in names]
        for s in declared
    }
    params = [values[n] for n in names]
    for step, g in enumerate(gradients(steps), start=1):
        feeds = {
            "learning_rate": np.array([rate(step)]),
            "step": np.array([step], np.int64),
            "params": params,
            "gradients": [g[n] for n in names],
            **states,
        }
        flag, params, *new = run.run(None, feeds)
        assert flag.dtype == bool
        assert flag.shape == (1,)
        assert flag[0]
        states = dict(zip(declared, new))
    return dict(zip(names, params))


def run_flat(optimizer, steps=STEPS):
    """What the device does: flat vectors by group (or tensor by tensor), scalars from outside."""
    values = start()
    model = optim.flat_model(optimizer)
    run = session(model)
    meta = json.loads(model.metadata_props["onnxtrain.optimizer"])
    segments = optimizer.resolve(list(values))
    pieces = []
    for segment in segments:
        if meta["layout"] == "elementwise":
            pieces.append((segment, segment.params))
        else:
            pieces.extend((segment, (name,)) for name in segment.params)
    states = {}
    for step, g in enumerate(gradients(steps), start=1):
        scale = np.float32(1)
        if meta["clip"] and "norm" in meta["clip"]:
            norm = np.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in g.values()))
            scale = np.float32(min(1.0, meta["clip"]["norm"] / (norm + 1e-6)))
        for k, (segment, names) in enumerate(pieces):
            flat = meta["layout"] == "elementwise"
            pack = (
                (lambda d, n=names: np.concatenate([d[x].ravel() for x in n]))
                if flat
                else (lambda d, n=names: d[n[0]])
            )
            p = pack(values)
            if k not in states:
                shape = p.shape
                states[k] = {
                    s: np.zeros(optimizer.state_shape(s, shape), np.float32) for s in meta["states"]
                }
            feeds = {
                "learning_rate": np.array([rate(step) * np.float32(segment.lr_scale)]),
                "step": np.array([step], np.int64),
                "grad_scale": np.array([scale]),
                "params": p,
                "gradients": pack(g),
                **states[k],
            }
            if optimizer.decays:
                feeds["weight_decay"] = np.array([segment.weight_decay], np.float32)
            new, *rest = run.run(None, feeds)
            states[k] = dict(zip(meta["states"], rest))
            offset = 0
            for name in names:
                size = values[name].size
                values[name] = new.ravel()[offset : offset + size].reshape(SHAPES[name])
                offset += size
    return values


def run_torch(make, clip=None, steps=STEPS, decay_of=None):
    values = {n: torch.nn.Parameter(torch.tensor(v)) for n, v in start().items()}
    optimizer = make(values)
    for step, g in enumerate(gradients(steps), start=1):
        for group in optimizer.param_groups:
            group["lr"] = float(rate(step)) * group.get("lr_scale", 1.0)
        for n, p in values.items():
            p.grad = torch.tensor(g[n])
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_(values.values(), 1.5)
        elif clip == "value":
            torch.nn.utils.clip_grad_value_(values.values(), 0.4)
        optimizer.step()
    return {n: p.detach().numpy() for n, p in values.items()}


def of(cls, **kw):
    return lambda values: cls(values.values(), lr=0.1, **kw)


T = torch.optim
TWINS = {
    "sgd": (optim.sgd(), of(T.SGD)),
    "sgd decay": (optim.sgd(weight_decay=0.1), of(T.SGD, weight_decay=0.1)),
    "sgd momentum": (optim.sgd(0.9, weight_decay=0.1), of(T.SGD, momentum=0.9, weight_decay=0.1)),
    "sgd dampening": (optim.sgd(0.9, 0.3), of(T.SGD, momentum=0.9, dampening=0.3)),
    "sgd nesterov": (
        optim.sgd(0.8, nesterov=True, weight_decay=0.01),
        of(T.SGD, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adamw": (optim.adamw(form="torch", weight_decay=0.1), of(T.AdamW, weight_decay=0.1)),
    "adamw preset": (optim.adamw(preset="torch"), of(T.AdamW)),
    "adamw betas": (
        optim.adamw((0.8, 0.95), 1e-4, form="torch"),
        of(T.AdamW, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.0),
    ),
    "adam": (optim.adam(weight_decay=0.1), of(T.Adam, weight_decay=0.1)),
    "adagrad": (
        optim.adagrad(0.1, 0.05, 0.2, 1e-6),
        of(T.Adagrad, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.2, eps=1e-6),
    ),
    "adagrad plain": (optim.adagrad(), of(T.Adagrad)),
    "rmsprop": (optim.rmsprop(weight_decay=0.1), of(T.RMSprop, weight_decay=0.1)),
    "rmsprop centered": (
        optim.rmsprop(0.9, 1e-3, momentum=0.7, centered=True),
        of(T.RMSprop, alpha=0.9, eps=1e-3, momentum=0.7, centered=True),
    ),
    "adadelta": (optim.adadelta(weight_decay=0.1), of(T.Adadelta, weight_decay=0.1)),
    "adafactor": (optim.adafactor(), of(T.Adafactor)),
    "adafactor decay": (
        optim.adafactor(-0.7, (1e-3, 1e-2), 1.5, 0.1),
        of(T.Adafactor, beta2_decay=-0.7, eps=(1e-3, 1e-2), d=1.5, weight_decay=0.1),
    ),
}  # fmt: skip


def test_presets_of_adamw() -> None:
    theirs = T.AdamW([torch.zeros(1)]).defaults
    ours = optim.adamw(preset="torch")
    assert ours.weight_decay == theirs["weight_decay"]
    assert ours.hyper["eps"] == theirs["eps"]
    assert tuple(ours.hyper["betas"]) == theirs["betas"]
    old = optim.adamw()
    assert (old.hyper["form"], old.hyper["eps"], old.weight_decay) == ("huggingface", 1e-6, 0.0)
    mixed = optim.adamw(eps=1e-5, weight_decay=0.0, preset="torch")
    assert (mixed.hyper["form"], mixed.hyper["eps"], mixed.weight_decay) == ("torch", 1e-5, 0.0)
    assert optim.adamw(form="torch").weight_decay == 0.0
    with pytest.raises(optim.OptimizerError, match="onnxruntime, torch"):
        optim.adamw(preset="keras")


def close(got, want, tolerance=2e-5):
    for name, value in want.items():
        assert got[name].shape == value.shape
        np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("run", [run_sequence, run_flat])
def test_equals_torch_over_100_steps(name, run):
    ours, theirs = TWINS[name]
    close(run(ours), run_torch(theirs))


@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("run", [run_sequence, run_flat])
@pytest.mark.parametrize("name", ["adamw", "sgd nesterov", "adafactor"])
def test_clipping_equals_torch(clip, run, name):
    ours, theirs = TWINS[name]
    how = optim.ClipNorm(1.5) if clip == "norm" else optim.ClipValue(0.4)
    close(run(ours.replace(clip=how)), run_torch(theirs, clip))


@pytest.mark.parametrize("run", [run_sequence, run_flat])
def test_groups_equal_torch(run):
    ours = optim.adamw(
        form="torch",
        weight_decay=0.2,
        groups=[optim.Group("[bs]", weight_decay=0.0), optim.Group(lambda n: n == "c", 0.25)],
    )

    def theirs(v):
        return T.AdamW(
            [
                {"params": [v["b"], v["s"]], "weight_decay": 0.0},
                {"params": [v["c"]], "lr_scale": 0.25},
                {"params": [v["a"]]},
            ],
            weight_decay=0.2,
        )

    close(run(ours), run_torch(theirs))


def numpy_run(step_function):
    values = {n: v.astype(np.float64) for n, v in start().items()}
    states = {n: {} for n in values}
    for t, g in enumerate(gradients(), start=1):
        for n, value in values.items():
            values[n] = step_function(value, g[n].astype(np.float64), states[n], t, float(rate(t)))
    return values


def huggingface(p, g, s, t, lr, b1=0.9, b2=0.999, eps=1e-6, wd=0.1):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    p = p - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * s["m"] / (np.sqrt(s["v"]) + eps)
    return p - lr * wd * p


def uncorrected(p, g, s, t, lr):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    return p - lr * s["m"] / (np.sqrt(s["v"]) + 1e-6)


def lion(p, g, s, t, lr, b1=0.9, b2=0.99, wd=0.1):
    m = s.get("m", 0)
    s["m"] = b2 * m + (1 - b2) * g
    return p - lr * (np.sign(b1 * m + (1 - b1) * g) + wd * p)


def lamb(p, g, s, t, lr, b1=0.9, b2=0.999, eps=1e-6, wd=0.1):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    u = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps) + wd * p
    of_p, of_u = np.linalg.norm(p), np.linalg.norm(u)
    return p - lr * (of_p / of_u if of_p > 0 and of_u > 0 else 1.0) * u


@pytest.mark.parametrize("run", [run_sequence, run_flat])
@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (optim.adamw(weight_decay=0.1), huggingface),
        (optim.adamw(correct_bias=False), uncorrected),
        (optim.lion(weight_decay=0.1), lion),
        (optim.lamb(weight_decay=0.1), lamb),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_equals_numpy_over_100_steps(run, ours, reference):
    close(run(ours), numpy_run(reference))


@pytest.mark.parametrize("opset", [12, 14, 17, 21])
@pytest.mark.parametrize("name", ["adamw", "sgd momentum", "adafactor"])
def test_sequence_form_at_other_opsets(opset, name):
    ours, theirs = TWINS[name]
    got = run_sequence(ours.replace(clip=optim.ClipNorm(1.5)), steps=5, opset=opset)
    close(got, run_torch(theirs, "norm", steps=5))


def test_lamb_with_zero_parameters_stays_finite():
    model = session(optim.flat_model(optim.lamb()))
    zeros = np.zeros(4, np.float32)
    feeds = {
        "learning_rate": np.ones(1, np.float32), "step": np.ones(1, np.int64),
        "grad_scale": np.ones(1, np.float32), "params": zeros, "gradients": zeros,
        "first_order_moments": zeros, "second_order_moments": zeros,
    }  # fmt: skip
    np.testing.assert_array_equal(model.run(None, feeds)[0], zeros)


def test_flat_form_makes_few_passes():
    """Scalars are folded: AdamW with decay is 13 passes over the vectors, SGD 2."""

    def passes(optimizer):
        model = optim.flat_model(optimizer)
        inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model), strict_mode=True)
        dims = {v.name: v.type.tensor_type.shape.dim for v in inferred.graph.value_info}
        numbers = {n for n, d in dims.items() if not d or d[0].dim_value == 1}
        return sum(n.output[0] not in numbers for n in inferred.graph.node)

    assert passes(optim.sgd()) == 2
    assert passes(optim.sgd(0.9)) == 5
    assert passes(optim.adamw(weight_decay=0.1)) == 13
    assert passes(optim.adamw(form="torch")) == 12


def test_metadata():
    optimizer = optim.adamw(
        weight_decay=0.1, clip=optim.ClipNorm(2.0), groups=[optim.Group("b", 2.0, 0.0)]
    )
    model = optim.sequence_model(optimizer, [("a", [2, 2]), ("b", [2])])
    meta = json.loads(model.metadata_props["onnxtrain.optimizer"])
    flat = onnx.ModelProto.FromString(base64.b64decode(meta.pop("flat")))
    assert [i.name for i in flat.graph.input] == [
        "learning_rate", "step", "grad_scale", "weight_decay", "params", "gradients",
        "first_order_moments", "second_order_moments",
    ]  # fmt: skip
    assert [o.name for o in flat.graph.output] == [
        "params.updated", "first_order_moments.updated", "second_order_moments.updated",
    ]  # fmt: skip
    assert meta == {
        "version": 1,
        "name": "AdamW",
        "states": ["first_order_moments", "second_order_moments"],
        "layout": "elementwise",
        "hyper": {
            "betas": [0.9, 0.999], "eps": 1e-6, "correct_bias": True,
            "form": "huggingface", "weight_decay": 0.1,
        },
        "clip": {"norm": 2.0},
        "groups": [
            {"params": ["b"], "lr_scale": 2.0, "weight_decay": 0.0},
            {"params": ["a"], "lr_scale": 1.0, "weight_decay": 0.1},
        ],
    }  # fmt: skip
    factored = json.loads(
        optim.sequence_model(optim.adafactor(), [("a", [2, 3]), ("b", [2])]).metadata_props[
            "onnxtrain.optimizer"
        ]
    )
    assert factored["layout"] == "tensor"
    assert factored["state_shapes"] == {
        "row_moments": {"a": [2, 1], "b": [1]}, "column_moments": {"a": [1, 3]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: optim.sgd(nesterov=True), "Nesterov"),
        (lambda: optim.sgd(momentum=-1), "momentum"),
        (lambda: optim.adamw((1.0, 0.9)), "betas"),
        (lambda: optim.adamw(form="keras"), "form"),
        (lambda: optim.chain(), "transform"),
        (lambda: optim.chain(optim.trace(0.9), optim.scale_by_adam()), "first_order_moments"),
        (lambda: optim.ClipNorm(0), "max_norm"),
        (lambda: optim.adam(groups=[optim.Group("z*")]).resolve(["a"]), "z*"),
        (lambda: optim.sequence_model(optim.adam(), []), "at least one"),
        (lambda: optim.sequence_model(optim.adam(), [("a", [1])], 9), "opset"),
        (lambda: optim.adafactor(0.3), "beta2_decay"),
    ],
)
def test_nonsense_is_refused(make, part):
    with pytest.raises(ValueError, match=part.replace("*", r"\*")):
        make()
