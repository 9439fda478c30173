"""Families that PyTorch exports, with the arguments the predecessor's documentation asks for."""

import io

import onnx
import torch
from families import ADAMW, _inputs

nn = torch.nn


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.layer(self.table(ids)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2)
        self.gru = nn.GRU(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.gru(self.lstm(x)[0])[0][-1])


def _export(kind, sample, axes):
    """Both the model and its initializers, trained ones and others."""

    def run():
        torch.manual_seed(0)
        buffer = io.BytesIO()
        torch.onnx.export(
            kind().train(), (sample,), buffer, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": axes}, opset_version=14, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING, dynamo=False,
        )  # fmt: skip
        model = onnx.load_from_string(buffer.getvalue())
        for node in model.graph.node:
            node.ClearField("doc_string")  # stack traces
        floats = {i.name: i for i in model.graph.initializer if i.data_type == 1}
        return model, floats

    return run


TORCH_FAMILIES = {
    "torch_convolutions": {
        "export": _export(Convolutions, torch.zeros(4, 1, 10, 10), {0: "N"}),
        "frozen": [f"norm{i}.running_{s}" for i in (1, 2) for s in ("mean", "var")],
        "loss": "CrossEntropyLoss",
        "optimizer": ADAMW,
        "rate": 0.01,
        "inputs": _inputs((4, 1, 10, 10), ((4,), 3)),
    },
    "torch_encoder": {
        "export": _export(Encoder, torch.zeros(3, 5, dtype=torch.int64), {0: "N", 1: "S"}),
        "loss": "CrossEntropyLoss",
        "optimizer": ADAMW,
        "rate": 0.01,
        "inputs": _inputs(((3, 5), 11), ((3,), 3)),
    },
    "torch_recurrent": {
        "export": _export(Recurrent, torch.zeros(5, 2, 3), {0: "T"}),
        "loss": "CrossEntropyLoss",
        "optimizer": ADAMW,
        "rate": 0.05,
        "inputs": _inputs((5, 2, 3), ((2,), 3)),
    },
}
