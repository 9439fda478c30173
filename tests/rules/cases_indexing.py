"""Cases of rules/indexing.py."""

import numpy as np

from .harness import case, const, fixed, x

MANY = np.random.default_rng(0).integers(-40, 40, (5, 13))
COLUMN = [[0, 2], [1, 0], [-1, 1]]

CASES = [
    case("Gather", x(5, 3), const(2)),
    case("Gather", x(5, 3), const(-1), axis=1),
    case("Gather", x(5, 3), const([[1]]), axis=1),
    case("Gather", x(5, 3), fixed(-2)),
    case("Gather", x(5, 3), const([0, 3, -1])),
    case("Gather", x(5, 3), const([0, 3, 3])),
    case("Gather", x(5, 3), const([-1, 4]), _label="same"),
    case("Gather", x(5, 3), fixed([[0, 3, 3], [1, -1, 0]])),
    case("Gather", x(2, 5, 3), fixed([[0, 3, 3], [1, -1, 0]]), axis=1),
    case("Gather", x(2, 5), fixed([[0, 3, 3], [1, -1, 0]]), axis=-1),
    case("Gather", x(5), fixed([1, 1, 4], "i4")),
    case("Gather", x(40, 9), fixed(MANY), _label="sorted"),
    case("Gather", x(2, 40, 9), fixed(MANY), axis=1, _label="sorted"),
    case("Gather", x(40, 9), fixed(np.zeros((0,))), _label="sorted empty"),
    case("Gather", x(40, 9), fixed([7]), _label="sorted one"),
    case("Gather", x(5, 3), const([1, 2, 3]), _label="a range"),
    case("Gather", x(3, 4), const([2, 3, 0, 1]), axis=1, _label="a permutation"),
    case("Gather", x(3, 5), const([4, 0]), axis=1, _label="a few"),
    case("Gather", x(3, 5), const([2, -3]), axis=1, _label="twice"),
    case("Gather", x(5, 3), const([[4, 1, 4], [0, 1, 4]]), _label="some of them twice"),
    case("Gather", x(2, 40, 3), const([[39, 1], [1, 39]]), axis=1, _label="some of them twice"),
    case("Gather", x(40, 9), const(MANY), _label="more often than others"),
    case("Gather", x(1100, 2), const([1, 1099, 1]), _label="far apart"),
    case("Gather", x(3, 40, 40), const([7, 3, 3]), axis=1, _label="wide"),
    case("Gather", x(40, 40), const([7, 3]), _label="wide"),
    case("Gather", x(4, 20), fixed([3, -1, 3, 0]), axis=1, _label="columns"),
    case("Gather", x(3, 20, 2), fixed([[0, 3, 3], [1, -1, 0]], "i4"), axis=1, _label="columns"),
    case("Gather", x(4, 20), fixed(-2), axis=-1, _label="one column"),
    case("Gather", x(4, 20), fixed(np.zeros((0,))), axis=1, _label="no column"),
    case("GatherElements", x(3, 3), fixed(COLUMN)),
    case("GatherElements", x(3, 3), const(COLUMN), axis=1),
    case("GatherElements", x(4, 3), fixed([[0], [2], [-1], [2]]), axis=-1),
    case("GatherND", x(3, 4), fixed([[0, 1], [2, -1], [0, 1]])),
    case("GatherND", x(3, 4, 9), const([[0, 1], [2, -1], [0, 1]])),
    case("GatherND", x(3, 4), const([[[0], [1]], [[0], [-1]]])),
    case("GatherND", x(2, 4, 3), const([[1], [3]]), batch_dims=1),
    case("GatherND", x(2, 4, 3), const([[[1, 0], [1, 0]], [[3, 2], [-1, 0]]]), batch_dims=1),
    case("GatherND", x(2, 2, 3), const([[[1], [2]], [[0], [2]]]), batch_dims=2),
    *(
        case("ScatterElements", x(3, 3), fixed(COLUMN), x(3, 2), axis=1, reduction=how)
        for how in ("none", "add", "mul", "max", "min")
    ),
    *(
        case("ScatterElements", x(3, 3), fixed([[0, 1, 0], [0, -1, 0]]), x(2, 3), reduction=how)
        for how in ("add", "mul", "max", "min")
    ),
    *(
        case("ScatterND", x(3, 4, 2), const([[0, 1], [2, -1]]), x(2, 2), reduction=how)
        for how in ("none", "add", "mul", "max", "min")
    ),
    *(
        case("ScatterND", x(3, 4), const([[1], [-2], [0]]), x(3, 4), reduction=how)
        for how in ("add", "mul", "max", "min")
    ),
    case("ScatterND", x(3, 4), fixed([[0, 1], [2, -1]]), x(2), reduction="mul"),
    case("TopK", x(3, 5, spread=True), const([2]), _outputs=2),
    case("TopK", x(3, 5, spread=True), fixed([2]), axis=0, largest=0, _outputs=(True, True)),
    case("Unique", x(2, 3, spread=True)),
    case("Unique", x(6, spread=True), sorted=0, _reference=False),
    case("Unique", x(array=[[1.0, 2], [3, 0], [0, 5]]), axis=0, _outputs=(True, False, True)),
    case("OneHot", fixed([1, -1, 0]), const(4), x(2)),
    case("OneHot", fixed([[1, 5, 0]]), fixed(4), x(2), axis=1),
    case("Compress", x(4, 3), fixed([True, False, True], bool), axis=0),
    case("Compress", x(2, 4, 3), fixed([False, True, True], bool), axis=-1),
    case("Compress", x(2, 3), fixed([True, False, False, True, True], bool)),
]
