"""Node counts of whole models: `python -m benchmarks.node_counts [workload ...]`.

For each workload: nodes of the exported model, nodes after normalizing, nodes with all gradients,
and how many of these are dead or duplicate (both must be 0).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx

import onnxtrain
from onnxtrain.graph import load
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up
from onnxtrain.passes.cleanup import duplicate_key

from .prepare import prepare
from .workloads import WORKLOADS


def dead_and_duplicate(model: onnx.ModelProto) -> tuple[int, int]:
    """Nodes that nothing reads, and nodes that compute what another one does."""
    graph = load(model).graph
    dead = sum(not any(o.uses() or o.is_graph_output() for o in node.outputs) for node in graph)
    keys = [key for node in graph if (key := duplicate_key(node)) is not None]
    return dead, len(keys) - len(set(keys))


def main() -> None:
    print("| model | exported | normalized | with gradients | dead | duplicate |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:] or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, Path(folder))
            model = onnx.load(Path(folder) / "model.onnx")
        normal = clean_up(normalize(load(model)))
        gradient = onnxtrain.differentiate(model, vjp=True)
        dead, duplicate = dead_and_duplicate(gradient)
        counts = [len(model.graph.node), normal.graph.num_nodes(), len(gradient.graph.node)]
        print(f"| {name} | {' | '.join(map(str, counts))} | {dead} | {duplicate} |", flush=True)


if __name__ == "__main__":
    main()
