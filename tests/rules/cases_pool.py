"""Cases of rules/pool.py."""

from .harness import case, fixed, x

K2, K22, K33 = [2], [2, 2], [3, 3]
S22 = [2, 2]


def apart(*shape: int):
    """Well separated values: no two elements of a window change places within a difference."""
    return x(*shape, spread=True, low=-3, high=3)


CASES = [
    # --- MaxPool
    case("MaxPool", apart(2, 3, 8), kernel_shape=K2, strides=[2]),
    case("MaxPool", apart(2, 3, 6, 8), kernel_shape=K22, strides=S22),
    case("MaxPool", apart(2, 3, 7, 9), kernel_shape=K22, strides=S22),
    case("MaxPool", apart(2, 3, 7, 9), kernel_shape=K22, strides=S22, ceil_mode=1),
    case("MaxPool", apart(2, 3, 7, 9), kernel_shape=K22, strides=S22, pads=[1, 1, 0, 0]),
    case("MaxPool", apart(2, 3, 8, 7), kernel_shape=K22, strides=[3, 3]),
    case("MaxPool", apart(2, 3, 9, 8), kernel_shape=K33, strides=S22, pads=[1] * 4),
    case("MaxPool", apart(2, 3, 9, 8), kernel_shape=K33, strides=S22, pads=[1] * 4, ceil_mode=1),
    case("MaxPool", apart(2, 3, 6, 5), kernel_shape=K33, pads=[1] * 4),
    case("MaxPool", apart(2, 3, 6, 5), kernel_shape=[3, 2]),
    case("MaxPool", apart(2, 3, 9, 8), kernel_shape=K22, dilations=[2, 3]),
    case("MaxPool", apart(2, 3, 9, 8), kernel_shape=K33, dilations=[2, 1], strides=[1, 2]),
    case("MaxPool", apart(2, 3, 7, 8), kernel_shape=K33, strides=S22, auto_pad="SAME_UPPER"),
    case("MaxPool", apart(2, 3, 7, 8), kernel_shape=[3, 2], strides=S22, auto_pad="SAME_LOWER"),
    case("MaxPool", apart(2, 3, 7, 8), kernel_shape=K22, strides=S22, auto_pad="VALID"),
    case("MaxPool", apart(1, 2, 4, 5, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    case("MaxPool", apart(1, 2, 5, 5, 6), kernel_shape=[3, 2, 3], strides=[2, 1, 2], pads=[1] * 6),
    case("MaxPool", apart(2, 3, 6, 8), kernel_shape=K22, strides=S22, _outputs=2),
    case("MaxPool", apart(2, 3, 6, 7), kernel_shape=K33, storage_order=1, _outputs=2),
    case("MaxPool", apart(2, 3, 6, 8), kernel_shape=K22, strides=S22, storage_order=1),
    # the last window would start behind the image and is dropped
    case("MaxPool", apart(2, 3, 3, 9), kernel_shape=K22, strides=[3, 3], ceil_mode=1),
    case("MaxPool", apart(2, 3, 6, 7), kernel_shape=K22, strides=[3, 2], ceil_mode=1),
    case(
        "MaxPool", apart(2, 3, 4, 7), kernel_shape=K22, strides=S22, pads=[0, 0, 1, 1], ceil_mode=1
    ),
    case("MaxPool", apart(2, 3, 4), kernel_shape=[1], strides=[2], ceil_mode=1),
    # --- MaxUnpool
    case(
        "MaxUnpool",
        x(1, 1, 2, 2),
        fixed([[[[5, 7], [8, 15]]]]),
        kernel_shape=K22,
        strides=S22,
    ),
    case(
        "MaxUnpool", x(2, 1, 3), fixed([[[0, 3, 4]], [[7, 9, 10]]]), kernel_shape=[2], strides=[2]
    ),
    # --- AveragePool
    case("AveragePool", x(2, 3, 8), kernel_shape=K2, strides=[2]),
    case("AveragePool", x(2, 3, 6, 8), kernel_shape=K22, strides=S22),
    case("AveragePool", x(2, 3, 7, 9), kernel_shape=K22, strides=S22),
    case("AveragePool", x(2, 3, 7, 9), kernel_shape=K22, strides=S22, ceil_mode=1),
    case("AveragePool", x(2, 3, 6, 8), kernel_shape=K22, strides=S22, ceil_mode=1),
    case("AveragePool", x(2, 3, 3, 9), kernel_shape=K22, strides=[3, 3], ceil_mode=1),
    case("AveragePool", x(2, 3, 6, 7), kernel_shape=K22, strides=[3, 2], ceil_mode=1),
    case("AveragePool", x(2, 3, 6, 7), kernel_shape=K33, pads=[1] * 4),
    case("AveragePool", x(2, 3, 6, 7), kernel_shape=K33, pads=[1] * 4, count_include_pad=1),
    case("AveragePool", x(2, 3, 6, 7), kernel_shape=[3, 2], pads=[1, 0, 2, 1]),
    case("AveragePool", x(2, 3, 6, 7), kernel_shape=K33),
    case("AveragePool", x(2, 3, 8, 9), kernel_shape=K33, strides=S22, pads=[1] * 4),
    case("AveragePool", x(2, 3, 8, 9), kernel_shape=K33, strides=S22, pads=[1] * 4, ceil_mode=1),
    case(
        "AveragePool",
        x(2, 3, 8, 9),
        kernel_shape=K33,
        strides=S22,
        pads=[1] * 4,
        ceil_mode=1,
        count_include_pad=1,
        _opset=19,
    ),
    case(
        "AveragePool",
        x(2, 3, 8, 9),
        kernel_shape=K33,
        strides=[3, 2],
        pads=[0, 1, 1, 1],
        count_include_pad=1,
    ),
    case("AveragePool", x(2, 3, 7, 8), kernel_shape=K33, strides=S22, auto_pad="SAME_UPPER"),
    case("AveragePool", x(2, 3, 7, 8), kernel_shape=[3, 2], strides=S22, auto_pad="SAME_LOWER"),
    case("AveragePool", x(2, 3, 7, 8), kernel_shape=[3, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", x(2, 3, 7, 8), kernel_shape=K33, strides=S22, auto_pad="VALID"),
    case("AveragePool", x(2, 3, 9, 8), kernel_shape=K22, dilations=[2, 3], _opset=19),
    case(
        "AveragePool",
        x(2, 3, 9, 8),
        kernel_shape=K33,
        dilations=[2, 1],
        strides=[1, 2],
        pads=[1] * 4,
        _opset=19,
    ),
    case("AveragePool", x(1, 2, 4, 5, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    case("AveragePool", x(1, 2, 4, 5, 6), kernel_shape=[3, 2, 2], strides=[2, 1, 2], pads=[1] * 6),
    # --- LpPool
    case("LpPool", x(2, 3, 8), kernel_shape=K2, strides=[2]),
    case("LpPool", x(2, 3, 6, 8), kernel_shape=K22, strides=S22, p=1),
    case("LpPool", x(2, 3, 6, 7), kernel_shape=K33, pads=[1] * 4, p=3),
    case("LpPool", x(2, 3, 8, 9), kernel_shape=K33, strides=S22, p=2, pads=[1] * 4),
    case("LpPool", x(2, 3, 7, 8), kernel_shape=K33, strides=S22, auto_pad="SAME_UPPER"),
    case("LpPool", x(2, 3, 8, 8), kernel_shape=K22, dilations=[2, 2]),
    # --- global
    case("GlobalAveragePool", x(2, 3, 5)),
    case("GlobalAveragePool", x(2, 3, 4, 5)),
    case("GlobalAveragePool", x(2, 3, 2, 4, 3)),
    case("GlobalMaxPool", apart(2, 3, 5)),
    case("GlobalMaxPool", apart(2, 3, 4, 5)),
    case("GlobalMaxPool", apart(2, 3, 2, 4, 3)),
    case("GlobalLpPool", x(2, 3, 4, 5)),
    case("GlobalLpPool", x(2, 3, 4, 5), p=1),
    case("GlobalLpPool", x(2, 3, 4, 5), p=3),
]
