"""Matrix products alone: `python3 -m benchmarks.products`, in the benchmark's own environment.

Nine tenths of a transformer's step are matrix products, so how a processor runs those of PyTorch
(MKL), of onnxruntime and of onnxtrain says most of what its ratios will be: MKL has AVX-512 kernels
for Intel's processors, and others get those of AVX2. One thread each, in turns, in one process:
threads of two libraries would wait for each other. The rows are kept by processor.
"""

from __future__ import annotations

import functools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .environments import ROOT, main_python

RESULTS = Path(__file__).parent / "products.json"
ROUNDS, OPERATIONS = 9, 2e9
"""Turns of each, and floating point operations of a turn at least."""
SIDES = ("torch", "onnxruntime", "onnxtrain")


class Product(NamedTuple):
    """Rows, columns and summed numbers; which operands lie transposed, and where it occurs."""

    rows: int
    columns: int
    summed: int
    turned: tuple[int, int]
    place: str


PRODUCTS = (
    Product(64, 512, 784, (0, 1), "MLP, forward"),
    Product(512, 784, 64, (1, 0), "MLP, weights' gradient"),
    Product(2048, 256, 256, (0, 1), "encoder, projection"),
    Product(2048, 1024, 256, (0, 1), "encoder, first feed-forward"),
    Product(2048, 256, 1024, (0, 0), "encoder, its input's gradient"),
    Product(1024, 256, 2048, (1, 0), "encoder, its weights' gradient"),
    Product(256, 3072, 768, (0, 0), "GPT-2, first feed-forward"),
    Product(256, 50257, 768, (0, 1), "GPT-2, head"),
    Product(50257, 768, 256, (1, 0), "GPT-2, the head's weights' gradient"),
    Product(2048, 2048, 2048, (0, 0), "a large square"),
)


def processor() -> str:
    """What the system calls it, with family and model where it tells them."""
    facts = dict[str, str]()
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']}, family {facts.get('cpu family')}, model {facts.get('model')}"


def measure() -> dict[str, list[float]]:
    """GFLOP/s of each side, product by product."""
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for product in PRODUCTS:
        operations = 2.0 * product.rows * product.columns * product.summed
        count, sides = max(1, int(OPERATIONS / operations)), makers(product)
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(ROUNDS):
            for side in SIDES:
                sides[side]()
                began = time.perf_counter()
                for _ in range(count):
                    sides[side]()
                times[side].append((time.perf_counter() - began) / count)
        for side in SIDES:
            speeds[side].append(round(operations / statistics.median(times[side]) / 1e9, 1))
    return speeds


def makers(product: Product, threads: int = 1) -> dict[str, Callable[[], Any]]:
    """A product by each side, its operands and result in memory already."""
    import numpy as np
    import onnxruntime
    import torch

    from onnxtrain.operators import KERNEL
    from onnxtrain.runtime.session.devices import open_session, session_options

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    shapes = [(product.rows, product.summed), (product.summed, product.columns)]
    a, b = (
        rng.standard_normal(shape[:: -1 if turned else 1]).astype(np.float32)
        for shape, turned in zip(shapes, product.turned)
    )
    left, right = (
        torch.from_numpy(x).t() if turned else torch.from_numpy(x)
        for x, turned in zip((a, b), product.turned)
    )
    result = torch.empty(product.rows, product.columns)
    sides: dict[str, Callable[[], Any]] = {"torch": lambda: torch.mm(left, right, out=result)}
    for side, mark in (("onnxruntime", ""), ("onnxtrain", KERNEL)):
        options = session_options(threads=threads, weights_change=True)
        session = open_session(_model(product, mark), options)
        binding = session.io_binding()
        for name, array in (("a", a), ("b", b)):
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        empty = np.empty((product.rows, product.columns), np.float32)
        binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(empty))
        sides[side] = functools.partial(session.run_with_iobinding, binding)
    return sides


def _model(product: Product, mark: str) -> bytes:
    from onnx import helper

    names = {"transA": product.turned[0], "transB": product.turned[1]}
    node = helper.make_node("Gemm", ["a", "b"], ["y"], doc_string=mark, **names)
    inputs = [helper.make_tensor_value_info(name, 1, [None, None]) for name in "ab"]
    output = helper.make_tensor_value_info("y", 1, [None, None])
    graph = helper.make_graph([node], "product", inputs, [output])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def section(results: dict[str, Any]) -> str:
    """The page's part: a table for each processor, the last one first."""
    head = ("product", "rows × columns × summed", *(f"{side}, GFLOP/s" for side in SIDES))
    parts = []
    for name, entry in sorted(results.items(), key=lambda item: item[1]["day"], reverse=True):
        lines = [f"**{name}** ({entry['day']}):", "", "| " + " | ".join(head) + " |"]
        lines.append("|" + " --- |" * len(head))
        for row in entry["rows"]:
            cells = [row["place"], row["size"], *(f"{row[side]:.0f}" for side in SIDES)]
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def stored() -> dict[str, Any]:
    """What has been measured, by processor."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


def main() -> int:
    if "--here" not in sys.argv:  # in the environment that has the peers
        return subprocess.call([main_python(), "-m", "benchmarks.products", "--here"], cwd=ROOT)
    speeds, results = measure(), stored()
    rows = [
        {"place": p.place, "size": f"{p.rows}×{p.columns}×{p.summed}"}
        | {side: speeds[side][number] for side in SIDES}
        for number, p in enumerate(PRODUCTS)
    ]
    results[processor()] = {"day": time.strftime("%Y-%m-%d"), "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(section({processor(): results[processor()]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
