"""Cases of passes/recurrent and rules/recurrent.py: 4 time steps, 3 features, hidden size 5.

Two sequences, or as many as the loop in columns wants (`columns.FEWEST_SEQUENCES`), with the hidden
size that it wants (`columns.NARROWEST`).
"""

from typing import Any

from .harness import Case, case, fixed, x

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
SPANS = [3, 4, 1, 2]
MANY = 16
WIDE = {"LSTM": 5, "GRU": 64, "RNN": 256}


def layer(
    op: str,
    *,
    d: int = 1,
    n: int = 2,
    b: bool = False,
    lens: bool = False,
    h: bool = False,
    c: bool = False,
    p: bool = False,
    scale: float = 1.0,
    size: int | None = None,
    **attrs: Any,
) -> Case:
    """A recurrent node with the optional inputs that are asked for."""
    size = size or (WIDE[op] if n >= MANY else 5)
    rows, most = GATES[op] * size, min(1.0, 2 / size**0.5)
    by_batch = attrs.get("layout") == 1
    state = (n, d, size) if by_batch else (d, n, size)
    inputs = [
        x(n, 4, 3, low=-scale, high=scale) if by_batch else x(4, n, 3, low=-scale, high=scale),
        x(d, rows, 3),
        x(d, rows, size, low=-most, high=most),
        x(d, 2 * rows) if b else None,
        fixed((SPANS * n)[:n], "int32") if lens else None,
        x(*state) if h else None,
    ]
    if op == "LSTM":
        inputs += [x(*state) if c else None, x(d, 3 * size) if p else None]
    while inputs[-1] is None:
        inputs.pop()
    attrs.setdefault("_outputs", 3 if op == "LSTM" else 2)
    return case(op, *inputs, hidden_size=size, **attrs)


BOTH = {"d": 2, "direction": "bidirectional"}

CASES = [
    *(layer(op) for op in GATES),
    *(layer(op, b=True, h=True) for op in GATES),
    *(layer(op, b=True, direction="reverse") for op in GATES),
    *(layer(op, b=True, h=True, c=op == "LSTM", **BOTH) for op in GATES),
    *(layer(op, b=True, h=True, lens=True) for op in GATES),
    *(layer(op, b=True, h=True, lens=True, direction="reverse") for op in GATES),
    *(layer(op, b=True, h=True, lens=True, c=op == "LSTM", **BOTH) for op in GATES),
    *(layer(op, b=True, h=True, layout=1, _reference=True) for op in GATES),
    *(layer(op, b=True, lens=True, layout=1, **BOTH) for op in GATES),
    *(layer(op, b=True, clip=0.4) for op in GATES),
    # any subset of outputs
    layer("LSTM", b=True, _outputs=(True, False, False)),
    layer("LSTM", b=True, _outputs=(False, True, False)),
    layer("LSTM", b=True, _outputs=(False, False, True)),
    layer("LSTM", b=True, _outputs=(True, False, True)),
    layer("LSTM", b=True, lens=True, _outputs=(False, True, True)),
    layer("GRU", b=True, _outputs=(True, False)),
    layer("GRU", b=True, _outputs=(False, True), **BOTH),
    layer("RNN", b=True, _outputs=(False, True), lens=True),
    # many sequences
    layer("LSTM", n=MANY),
    layer("LSTM", n=MANY, b=True, h=True, c=True),
    layer("LSTM", n=MANY, b=True, h=True, direction="reverse"),
    layer("LSTM", n=MANY, b=True, h=True, c=True, **BOTH),
    layer("LSTM", n=MANY, b=True, c=True, layout=1, **BOTH),
    layer("LSTM", n=MANY, b=True, activations=["Sigmoid", "Tanh", "Tanh"] * 2, **BOTH),
    layer("LSTM", n=MANY, b=True, activations=["Sigmoid", "Tanh", "Relu"]),
    layer("LSTM", n=MANY, b=True, _outputs=(True, False, False)),
    layer("LSTM", n=MANY, b=True, _outputs=(False, True, False)),
    layer("LSTM", n=MANY, _outputs=(False, False, True), direction="reverse"),
    *(layer(op, n=MANY, b=True, h=True, lens=True, c=op == "LSTM", **BOTH) for op in GATES),
    layer("LSTM", n=MANY, b=True, lens=True, layout=1, **BOTH),
    layer("LSTM", n=MANY, lens=True, p=True, direction="reverse"),
    layer("LSTM", n=MANY, p=True, b=True, h=True, c=True),
    layer("LSTM", n=MANY, p=True, _outputs=(False, False, True)),
    layer("LSTM", n=MANY, b=True, input_forget=1),
    layer("GRU", n=MANY),
    layer("GRU", n=MANY, b=True, clip=0.4),
    layer("GRU", n=MANY, b=True, h=True, linear_before_reset=1, lens=True),
    layer("GRU", n=MANY, linear_before_reset=1, direction="reverse"),
    layer("GRU", n=MANY, b=True, h=True, _outputs=(False, True), direction="reverse"),
    layer("RNN", n=MANY, b=True, h=True),
    layer("RNN", n=MANY, b=True, activations=["Relu"]),
    layer("RNN", n=MANY, activations=["Sigmoid", "Tanh"], **BOTH),
    layer("RNN", n=MANY, b=True, activations=["Softsign"]),
    # variants of the cells
    layer("LSTM", b=True, p=True, h=True, c=True),
    layer("LSTM", b=True, p=True, lens=True, **BOTH),
    layer("LSTM", b=True, input_forget=1),
    layer("LSTM", b=True, input_forget=1, p=True, clip=0.5),
    layer("GRU", b=True, h=True, linear_before_reset=1),
    layer("GRU", linear_before_reset=1),
    layer("GRU", b=True, lens=True, linear_before_reset=1, clip=0.6, **BOTH),
    # activations
    layer("RNN", activations=["Relu"]),
    layer("RNN", activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.1]),
    layer("RNN", activations=["LeakyRelu"], activation_alpha=[0.3]),
    layer("RNN", activations=["ThresholdedRelu"], activation_alpha=[0.2]),
    layer("RNN", activations=["ScaledTanh"], activation_alpha=[0.8], activation_beta=[1.3]),
    layer("RNN", activations=["HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4]),
    layer("RNN", activations=["Elu"], activation_alpha=[0.7]),
    layer("RNN", activations=["Softsign"]),
    layer("RNN", activations=["Softplus"]),
    layer("RNN", activations=["Tanh", "Elu"], activation_alpha=[0.6], **BOTH),
    layer("GRU", b=True, activations=["HardSigmoid", "Softsign"]),
    layer(
        "LSTM",
        b=True,
        activations=["HardSigmoid", "Elu", "ScaledTanh", "Sigmoid", "LeakyRelu", "Tanh"],
        activation_alpha=[0.25, 0.9, 1.2, 0.2],
        activation_beta=[0.45, 0.8],
        **BOTH,
    ),
]  # fmt: skip
