"""What lists do to networks before they are tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.lists import optimum, timm


class Cached(torch.nn.Module):
    """Reads its arguments in another order than a caller may name them."""

    def forward(
        self, x: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        return {"y": x * 2, "present": past[0][0] + past[0][1]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_an_exporter_is_shown_has_the_names_of_the_graph(tmp_path: Path) -> None:
    given = {"past": [(torch.ones(2), torch.full((2,), 3.0))], "x": torch.arange(2.0)}
    names = {"input_names": ["x", "past.key", "past.value"], "output_names": ["y", "present"]}
    with optimum._watched() as shown:
        torch.onnx.export(Cached(), (given,), f=str(tmp_path / "a.onnx"), dynamo=False, **names)
    feeds, expected = optimum._calls(shown, "a.onnx")
    assert {n: a.tolist() for n, a in feeds.items()} == {
        "x": [0, 1], "past.key": [1, 1], "past.value": [3, 3],
    }  # fmt: skip
    assert {n: a.tolist() for n, a in expected.items()} == {"y": [0, 2], "present": [4, 4]}


def test_a_merged_decoder_is_called_with_a_past() -> None:
    array = np.zeros(1)
    shown = {
        "decoder_model.onnx": ({"ids": array, "encoded": array}, {"y": array}),
        "decoder_with_past_model.onnx": ({"ids": array + 1, "past": array}, {"y": array + 1}),
    }
    feeds, expected = optimum._calls(shown, optimum.MERGED)
    assert sorted(feeds) == ["encoded", "ids", "past", optimum.USE_CACHE]
    assert (feeds["ids"][0], expected["y"][0]) == (1, 1)


def test_the_usual_task_is_tried() -> None:
    assert optimum._main_task(["feature-extraction", "fill-mask"]) == "fill-mask"
    assert optimum._main_task(["feature-extraction", "text-to-audio"]) == "text-to-audio"


def test_biases_are_gathered_at_every_call() -> None:
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2)).eval()
    network[1].attention_bias_cache = {}
    timm._forget_biases(network)
    assert [layer.training for layer in network] == [False, True]
