"""What the page takes as data, and what it says of data that it does not take."""

import numpy as np
import pytest

from . import tools


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    path, bomb, cut = (folder / name for name in ("t.npz", "bomb.npz", "cut.npz"))
    x = np.zeros((3, 2), np.float32)
    np.savez(path, x=x, y=np.array(["zürich", "bern", "zürich"]))
    nan, one_hot = path.with_name("nan.npz"), path.with_name("one_hot.npz")
    np.savez(nan, x=np.array([[0, 1], [np.nan, 2]], np.float32), y=np.array([0, 1]))
    np.savez_compressed(one_hot, x=x, y=np.eye(3, dtype=np.float32))
    np.savez_compressed(bomb, x=np.zeros(300_000_000, np.uint8))  # 292 kB that hold 300 MB
    content = path.read_bytes()
    cut.write_bytes(content[:200] + content[-22:])
    files = (path, nan, one_hot, bomb, cut)
    (report,) = tools.run_node("data.mjs", tools.STATIC, *files)
    return report


def test_text_labels_are_classes(tried):
    assert tried["text"] == {"rows": 2, "labels": [1, 0], "classes": ["cat", "dog"]}
    assert tried["headless"] == tried["text"]
    assert tried["numpy"] == {"rows": 3, "labels": [1, 0, 1], "classes": ["bern", "zürich"]}


def test_a_label_that_is_ignored_is_fine(tried):
    assert tried["ignored"]["labels"] == [0, -100]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("many", 't.csv: "labels" holds 4 classes (a, b, c, d …), and the model has 3.'),
        ("large", 'has the label 7 in row 1, and labels are classes 0 to 2. Correct the labels'),
        ("nan", 't.csv, line 3: "nan" is not a number.'),
        ("nanNumpy", 't.npz: "x" holds NaN in row 1. Remove such rows, or fill them in.'),
        ("negative", '"labels" has the label -1 in row 0, and labels are classes 0 to 2.'),
        ("oneHot", 'a row for "labels" has 3 numbers, and the model takes one.'),
        ("empty", "t.csv has no rows."),
        ("onlyHeader", "t.csv has no rows."),
        ("nanTarget", '"target" holds Infinity in row 1. Remove such rows'),
        ("textTarget", '"target" holds text ("high"), and the model takes numbers.'),
        ("narrow", 'a row for "x" has one number, and the model takes 2.'),
        ("fraction", '"labels" must hold whole numbers, not 0.5 as in row 0.'),
        ("bomb", "t.npz holds 200 times as much as it has: that is how bombs are made."),
        ("cut", "t.npz is damaged."),
    ],
)  # fmt: skip
def test_complaints_name_the_place(tried, case, text):
    assert text in tried[case]["error"]
