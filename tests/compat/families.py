"""The model families whose artifacts are stored under data/: forward models, losses, optimizers.

`make_data.py` reads this in the predecessor's environment, so it needs numpy only. Names in
`weights` that are neither frozen nor constants are trained.
"""

import numpy as np


def _normal(rng, *shape, scale=0.4):
    return (rng.normal(size=shape) * scale).astype(np.float32)


def _floats(**shapes):
    return lambda rng: {name: _normal(rng, *shape) for name, shape in shapes.items()}


def _inputs(*kinds):
    """Batches: a shape gives normal floats, (shape, n) integers below n."""

    def make(rng):
        values = []
        for kind in kinds:
            if isinstance(kind, tuple) and len(kind) == 2 and isinstance(kind[0], tuple):
                values.append(rng.integers(0, kind[1], size=kind[0]).astype(np.int64))
            else:
                values.append(_normal(rng, *kind, scale=1.0))
        return values

    return make


ADAMW = ("AdamW", {})
SGD = ("SGD", {})

FAMILIES = {
    "mlp_mse": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[N, 4] x) => (float[N, 2] y) {
                h = Gemm <transB = 1> (x, fc1__weight, fc1__bias)
                a = Relu(h)
                y = Gemm <transB = 1> (a, fc2__weight, fc2__bias)
            }""",
        "weights": _floats(
            **{"fc1.weight": (8, 4), "fc1.bias": (8,), "fc2.weight": (2, 8), "fc2.bias": (2,)}
        ),
        "loss": "MSELoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs((5, 4), (5, 2)),
        "additional": ["y"],
        "keep_trained": True,
    },
    "mlp_ce": {
        "text": """<ir_version: 7, opset_import: ["": 14]>
            g (float[N, 6] x) => (float[N, 3] y) {
                h = MatMul(x, w1)
                hb = Add(h, b1)
                a = Sigmoid(hb)
                y = Gemm(a, w2, b2)
            }""",
        "weights": _floats(w1=(6, 7), b1=(7,), w2=(7, 3), b2=(3,)),
        "loss": "CrossEntropyLoss",
        "optimizer": SGD,
        "rate": 0.5,
        "inputs": _inputs((4, 6), ((4,), 3)),
    },
    "mlp_bce": {
        "text": """<ir_version: 8, opset_import: ["": 15]>
            g (float[N, 3] x) => (float[N, 1] y) {
                h = MatMul(x, w1)
                hb = Add(h, b1)
                a = Tanh(hb)
                l = LeakyRelu <alpha = 0.2> (a)
                y = MatMul(l, w2)
            }""",
        "weights": _floats(w1=(3, 5), b1=(5,), w2=(5, 1)),
        "loss": "BCEWithLogitsLoss",
        "optimizer": ("AdamW", {"weight_decay": 0.01, "clip": 0.1, "betas": (0.8, 0.99)}),
        "rate": 0.1,
        "inputs": lambda rng: [
            _normal(rng, 6, 3, scale=1.0),
            rng.integers(0, 2, size=(6, 1)).astype(np.float32),
        ],
    },
    "cnn_batchnorm": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[4, 2, 8, 8] x) => (float[4, 3] y) {
                c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, cw)
                n = BatchNormalization <epsilon = 0.001, momentum = 0.8> (c, scale, bias, mean, var)
                r = Relu(n)
                m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
                d = Conv <kernel_shape = [3, 3], strides = [2, 2], group = 2> (m, dw)
                f = Flatten(d)
                y = Gemm(f, w, b)
            }""",
        "weights": lambda rng: {
            "cw": _normal(rng, 4, 2, 3, 3),
            "scale": 1 + _normal(rng, 4, scale=0.1),
            "bias": _normal(rng, 4),
            "mean": np.zeros(4, np.float32),
            "var": np.ones(4, np.float32),
            "dw": _normal(rng, 4, 2, 3, 3),
            "w": _normal(rng, 4, 3),
            "b": _normal(rng, 3),
        },
        "frozen": ["mean", "var"],
        "loss": "CrossEntropyLoss",
        "optimizer": ADAMW,
        "rate": 0.01,
        "inputs": _inputs((4, 2, 8, 8), ((4,), 3)),
    },
    "cnn_pools": {
        "text": """<ir_version: 8, opset_import: ["": 16]>
            g (float[3, 1, 9, 9] x) => (float[3, 3] y) {
                c = Conv <kernel_shape = [2, 2], dilations = [2, 2],
                          pads = [1, 0, 1, 2]> (x, cw, cb)
                r = Relu(c)
                a = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1],
                                 count_include_pad = 1> (r)
                m = MaxPool <kernel_shape = [2, 2]> (a)
                g2 = GlobalAveragePool(m)
                f = Flatten(g2)
                y = Gemm(f, w, b)
            }""",
        "weights": _floats(cw=(4, 1, 2, 2), cb=(4,), w=(4, 3), b=(3,)),
        "loss": "MSELoss",
        "optimizer": SGD,
        "rate": 0.2,
        "inputs": _inputs((3, 1, 9, 9), (3, 3)),
    },
    "transformer": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[B, S, 8] x) => (float[B, S, 8] y) {
                ln1, lm1, li1 = LayerNormalization <axis = -1> (x, g1, be1)
                qkv = MatMul(ln1, wqkv)
                parts = Constant <value = int64[3] {8, 8, 8}> ()
                q, k, v = Split <axis = 2> (qkv, parts)
                heads = Constant <value = int64[4] {0, 0, 2, 4}> ()
                qr = Reshape(q, heads)
                kr = Reshape(k, heads)
                vr = Reshape(v, heads)
                qt = Transpose <perm = [0, 2, 1, 3]> (qr)
                kt = Transpose <perm = [0, 2, 3, 1]> (kr)
                vt = Transpose <perm = [0, 2, 1, 3]> (vr)
                scores = MatMul(qt, kt)
                two = Constant <value = float {2.0}> ()
                scaled = Div(scores, two)
                p = Softmax <axis = -1> (scaled)
                ctx = MatMul(p, vt)
                ct = Transpose <perm = [0, 2, 1, 3]> (ctx)
                flat = Constant <value = int64[3] {0, 0, 8}> ()
                cr = Reshape(ct, flat)
                o = MatMul(cr, wo)
                res = Add(x, o)
                ln2, lm2, li2 = LayerNormalization <axis = -1> (res, g2, be2)
                h = MatMul(ln2, wf)
                hb = Add(h, bf)
                root = Constant <value = float {1.4142135381698608}> ()
                hd = Div(hb, root)
                er = Erf(hd)
                one = Constant <value = float {1.0}> ()
                e1 = Add(er, one)
                hm = Mul(hb, e1)
                half = Constant <value = float {0.5}> ()
                gelu = Mul(hm, half)
                out = MatMul(gelu, wp)
                y = Add(res, out)
            }""",
        "weights": lambda rng: {
            "g1": 1 + _normal(rng, 8, scale=0.1),
            "be1": _normal(rng, 8),
            "wqkv": _normal(rng, 8, 24),
            "wo": _normal(rng, 8, 8),
            "g2": 1 + _normal(rng, 8, scale=0.1),
            "be2": _normal(rng, 8),
            "wf": _normal(rng, 8, 16),
            "bf": _normal(rng, 16),
            "wp": _normal(rng, 16, 8),
        },
        "loss": "MSELoss",
        "optimizer": ADAMW,
        "rate": 0.01,
        "inputs": _inputs((2, 3, 8), (2, 3, 8)),
    },
    "embedding": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (int64[B, S] ids) => (float[B, 5] y) {
                e = Gather(table, ids)
                ratio = Constant <value = float {0.0}> ()
                on = Constant <value = bool {1}> ()
                d, mask = Dropout(e, ratio, on)
                m = ReduceMean <axes = [1], keepdims = 0> (d)
                y = MatMul(m, w)
            }""",
        "weights": _floats(table=(11, 4), w=(4, 5)),
        "loss": "CrossEntropyLoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs(((3, 4), 11), ((3,), 5)),
    },
    "lstm": {
        "text": """<ir_version: 8, opset_import: ["": 14]>
            g (float[5, 2, 3] x) => (float[2, 2] y) {
                ys, yh, yc = LSTM <hidden_size = 4> (x, w, r, b, , h0, c0)
                z = Constant <value = int64[1] {0}> ()
                h = Squeeze(yh, z)
                s = ReduceMean <axes = [0, 1], keepdims = 0> (ys)
                c = Squeeze(yc, z)
                hs = Add(h, s)
                t = Add(hs, c)
                y = Gemm(t, wo, bo)
            }""",
        "weights": _floats(
            w=(1, 16, 3), r=(1, 16, 4), b=(1, 32), h0=(1, 2, 4), c0=(1, 2, 4), wo=(4, 2), bo=(2,)
        ),
        "loss": "MSELoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs((5, 2, 3), (2, 2)),
    },
    "gru": {
        "text": """<ir_version: 8, opset_import: ["": 14]>
            g (float[5, 2, 3] x) => (float[2, 2] y) {
                ys, yh = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, b, , h0)
                z = Constant <value = int64[1] {0}> ()
                h = Squeeze(yh, z)
                s = ReduceMean <axes = [0, 1], keepdims = 0> (ys)
                t = Add(h, s)
                y = Gemm(t, wo, bo)
            }""",
        "weights": _floats(w=(1, 12, 3), r=(1, 12, 4), b=(1, 24), h0=(1, 2, 4), wo=(4, 2), bo=(2,)),
        "loss": "MSELoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs((5, 2, 3), (2, 2)),
    },
    "gru_reset_first": {
        "text": """<ir_version: 8, opset_import: ["": 14]>
            g (float[4, 3, 2] x) => (float[4, 1, 3, 3] ys) {
                ys, yh = GRU <hidden_size = 3> (x, w, r, b, , h0)
            }""",
        "weights": _floats(w=(1, 9, 2), r=(1, 9, 3), b=(1, 18), h0=(1, 3, 3)),
        "loss": "MSELoss",
        "optimizer": SGD,
        "rate": 0.2,
        "inputs": _inputs((4, 3, 2), (4, 1, 3, 3)),
    },
    "pieces": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[N, 6] x) => (float[N, 8] y) {
                h = Mul(x, w1)
                sizes = Constant <value = int64[2] {2, 4}> ()
                a, b = Split <axis = 1> (h, sizes)
                s = Constant <value = int64[1] {1}> ()
                e = Constant <value = int64[1] {4}> ()
                ax = Constant <value = int64[1] {1}> ()
                c = Slice(b, s, e, ax)
                d = Concat <axis = 1> (c, a, c)
                t = Div(d, w2)
                two = Constant <value = float {2.0}> ()
                p = Pow(t, two)
                one = Constant <value = float {1.0}> ()
                q = Add(p, one)
                sq = Sqrt(q)
                l = Log(sq)
                y = Sub(l, w3)
            }""",
        "weights": lambda rng: {
            "w1": _normal(rng, 6),
            "w2": 1 + _normal(rng, 8, scale=0.1),
            "w3": _normal(rng, 1, 8),
        },
        "loss": "MSELoss",
        "optimizer": SGD,
        "rate": 0.1,
        "inputs": _inputs((4, 6), (4, 8)),
    },
    "broadcasting": {
        "text": """<ir_version: 8, opset_import: ["": 18]>
            g (float[M, N] x, float[M, N] z) => (float[M, N] y) {
                a = Mul(x, w1)
                b = Div(a, w2)
                zero = Constant <value = float {0.0}> ()
                m = Greater(x, zero)
                c = Where(m, b, a)
                e = Exp(c)
                n = Neg(e)
                v = Max(n, z)
                u = Min(v, w1)
                lo = Constant <value = float {-2.0}> ()
                hi = Constant <value = float {2.0}> ()
                k = Clip(u, lo, hi)
                y = Add(k, a)
            }""",
        "weights": lambda rng: {
            "w1": _normal(rng, 1),
            "w2": 1 + _normal(rng, 1, 1, scale=0.1),
        },
        "loss": "L1Loss",
        "optimizer": SGD,
        "rate": 0.05,
        "inputs": _inputs((3, 4), (3, 4), (3, 4)),
    },
    "unknown_broadcasting": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[A, 4] x, float[B, 4] z) => (float[C, 4] y) {
                h = Mul(x, w)
                k = Mul(z, v)
                y = Add(h, k)
            }""",
        "weights": lambda rng: {"w": _normal(rng, 4), "v": 3 + _normal(rng, 4)},
        "loss": "MSELoss",
        "optimizer": SGD,
        "rate": 0.05,
        "inputs": lambda rng: [
            _normal(rng, 3, 4, scale=1.0),
            2 + _normal(rng, 3, 4),
            _normal(rng, 3, 4, scale=1.0),
        ],
    },
    "gathers": {
        "text": """<ir_version: 8, opset_import: ["": 16]>
            g (int64[3, 2] i, int64[4, 1] j) => (float[3, 2] y, float[4, 5] z) {
                y = GatherElements <axis = 0> (w1, i)
                n = GatherND(w2, j)
                l = LogSoftmax <axis = 1> (n)
                z = Softmax <axis = 1> (l)
            }""",
        "weights": _floats(w1=(3, 2), w2=(6, 5)),
        "loss": "MeanSquare",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs(((3, 2), 3), ((4, 1), 6)),
    },
    "frozen": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[N, 4] x) => (float[N, 2] y) {
                h = Gemm(x, base__weight, base__bias)
                a = Relu(h)
                s = Mul(a, fixed)
                y = Gemm(s, head__weight, head__bias)
            }""",
        "weights": _floats(
            **{
                "base.weight": (4, 6),
                "base.bias": (6,),
                "fixed": (6,),
                "head.weight": (6, 2),
                "head.bias": (2,),
            }
        ),
        "frozen": ["base.weight", "base.bias"],
        "constants": ["fixed"],
        "loss": "MSELoss",
        "optimizer": ("SGD", {"clip": 0.5}),
        "rate": 0.1,
        "accumulate": 2,
        "inputs": _inputs((5, 4), (5, 2)),
    },
    "fast_gelu": {
        "text": """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
            g (float[N, 4] x) => (float[N, 4] y) {
                h = MatMul(x, w1)
                f = com.microsoft.FastGelu(h)
                k = MatMul(f, w2)
                q = com.microsoft.QuickGelu <alpha = 1.702> (k)
                r = MatMul(q, w3)
                b = com.microsoft.BiasGelu(r, b3)
                y = Mul(b, w4)
            }""",
        "weights": _floats(w1=(4, 6), w2=(6, 5), w3=(5, 4), b3=(4,), w4=(4,)),
        "loss": "MSELoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs((5, 4), (5, 4)),
    },
    "reductions": {
        "text": """<ir_version: 8, opset_import: ["": 18]>
            g (float[N, 3, 4] x) => (float[N, 3] y, float[N, 4] z) {
                h = Mul(x, w1)
                two = Constant <value = int64[1] {2}> ()
                s = ReduceSum <keepdims = 0> (h, two)
                one = Constant <value = int64[1] {1}> ()
                l = ReduceLogSumExp <keepdims = 1> (h, one)
                ls = Squeeze(l, one)
                n = ReduceL2 <keepdims = 1> (h, two)
                ns = Squeeze(n, two)
                y = Add(s, ns)
                z = Reciprocal(ls)
            }""",
        "weights": lambda rng: {"w1": _normal(rng, 3, 4)},
        "loss": "MeanSquare",
        "optimizer": SGD,
        "rate": 0.02,
        "inputs": _inputs((2, 3, 4)),
    },
    "movement": {
        "text": """<ir_version: 8, opset_import: ["": 17]>
            g (float[2, 3] x) => (float[2, 14] y) {
                e = Mul(x, w)
                reps = Constant <value = int64[2] {1, 2}> ()
                t = Tile(e, reps)
                pads = Constant <value = int64[4] {0, 1, 0, 0}> ()
                p = Pad(t, pads)
                shape = Constant <value = int64[3] {2, 2, 7}> ()
                ax = Constant <value = int64[1] {1}> ()
                u = Unsqueeze(p, ax)
                x2 = Expand(u, shape)
                flat = Constant <value = int64[2] {2, 14}> ()
                r = Reshape(x2, flat)
                c = Cos(r)
                s = Sin(r)
                a = Abs(s)
                y = Mul(a, c)
            }""",
        "weights": _floats(w=(2, 3)),
        "loss": "MSELoss",
        "optimizer": SGD,
        "rate": 0.1,
        "inputs": _inputs((2, 3), (2, 14)),
    },
}
