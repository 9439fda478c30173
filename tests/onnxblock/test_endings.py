"""Losses on what they are not meant for: a warning that names what to use instead."""

from __future__ import annotations

import warnings

import onnx
import pytest

from onnxtrain import artifacts, onnxblock
from onnxtrain.errors import LossInputWarning, OnnxTrainWarning
from onnxtrain.graph.endings import Ending, ending, producer_in, producer_in_proto
from onnxtrain.graph.io import load

L = onnxblock.loss

# nodes from the scores z to the value p, how p ends
ENDS = {
    "p = Softmax <axis = 1> (z)": "Softmax",
    "s = Softmax <axis = 1> (z) p = Identity (s)": "Softmax",
    "s = Softmax <axis = 1> (z) r = Reshape (s, shape) p = Cast <to = 1> (r)": "Softmax",
    "t = Transpose (z) s = Softmax <axis = 0> (t) p = Transpose (s)": "Softmax",
    "s = Softmax <axis = 1> (z) p = Clip (s, low)": "Softmax",
    "p = LogSoftmax <axis = 1> (z)": "LogSoftmax",
    "s = Softmax <axis = 1> (z) p = Log (s)": "LogSoftmax",
    "s = Softmax <axis = 1> (z) c = Clip (s, low) p = Log (c)": "LogSoftmax",
    "p = Sigmoid (z)": "Sigmoid",
    "s = Sigmoid (z) p = Log (s)": None,
    "p = Relu (z)": None,
    "s = Softmax <axis = 1> (z) p = Add (s, z)": None,
    "p = Identity (z)": None,
    "s = Softmax <axis = 1> (z) a = Log (s) p = Log (a)": None,
}


def model(nodes):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 3] x) => (float[N, 3] p)
        <float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, int64[2] shape = {{-1, 3}},
         float low = {{0.001}}> {{
            z = MatMul (x, w)
            {nodes}
        }}"""
    )


@pytest.mark.parametrize("nodes", ENDS)
def test_endings(nodes):
    made = model(nodes)
    scores = "t" if "t = " in nodes else "z"
    function = ENDS[nodes]
    want = None if function is None else Ending("p", function, scores)
    assert ending("p", producer_in_proto(made.graph)) == want
    assert ending("p", producer_in(load(made).graph)) == want


def test_a_circle_ends():
    circle = {"a": ("Identity", "b"), "b": ("Identity", "a")}
    assert ending("a", circle.get) is None


UNFIT = {
    L.CrossEntropyLoss: {"Softmax"},
    L.NLLLoss: {"Softmax"},
    L.KLDivLoss: {"Softmax"},
    L.BCEWithLogitsLoss: {"Sigmoid"},
    L.BCELoss: set(),
    L.MSELoss: set(),
    L.MultiMarginLoss: set(),
}


@pytest.mark.parametrize("loss", UNFIT)
@pytest.mark.parametrize("nodes", ["p = Softmax <axis = 1> (z)", "p = Sigmoid (z)",
                                   "p = LogSoftmax <axis = 1> (z)"])  # fmt: skip
def test_generate_artifacts_warns(tmp_path, loss, nodes):
    made = model(nodes)
    options = {"requires_grad": ["w"], "artifact_directory": tmp_path}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        artifacts.generate_artifacts(made, loss=loss(), **options)
    unfit = ENDS[nodes] in UNFIT[loss]
    assert len(said) == unfit
    if not unfit:
        return
    assert said[0].category is LossInputWarning
    assert issubclass(LossInputWarning, OnnxTrainWarning)
    assert said[0].filename == __file__
    text = str(said[0].message)
    assert loss.__name__ in text
    assert "'p'" in text
    assert "loss_input_names=['z']" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifacts.generate_artifacts(model(nodes), loss=loss(), loss_input_names=["z"], **options)


def test_by_name_and_in_a_block_of_ones_own(tmp_path):
    nodes = "p = Softmax <axis = 1> (z)"
    with pytest.warns(LossInputWarning, match="'z'"):
        artifacts.generate_artifacts(
            model(nodes), requires_grad=["w"], loss=artifacts.LossType.NLLLoss,
            artifact_directory=tmp_path,
        )  # fmt: skip

    class Own(onnxblock.TrainingBlock):
        def build(self, output):
            return L.CrossEntropyLoss()(output)

    block = Own()
    block.requires_grad("w")
    with onnxblock.base(model(nodes)), pytest.warns(LossInputWarning) as said:
        block("p")
    assert said[0].filename == __file__
