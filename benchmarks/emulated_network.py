"""Overlap of exchange and backward pass, on an emulated network.

    python -m benchmarks.emulated_network [--ranks 8] [--layers 8] [--width 1024] [--batch 256]

One process plays one of several ranks. Its all-reduce sleeps as long as a network of a given
bandwidth would take (`predict` without compute), and the other ranks are taken to have the same
gradients at the same time. Waiting costs no processor time, as with a network card; so the gain of
overlapping is real, and what is emulated is the network only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from onnxtrain.api import Trainer
from onnxtrain.distributed import Backend
from onnxtrain.distributed.sampler import Part

from .distributed_scaling import make, predict

SPEEDS = {"1 Gbit/s": (0.11e9, 50e-6), "10 Gbit/s": (1.1e9, 30e-6), "25 Gbit/s": (2.75e9, 10e-6),
          "100 Gbit/s": (11e9, 2e-6)}  # fmt: skip
"""Bytes per second and seconds per message."""

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "buckets of 25 MB": {"overlap": True, "bucket_mb": 25.0},
    "buckets of 4 MB": {"overlap": True, "bucket_mb": 4.0},
}


class Emulated(Backend):
    """Rank 0 of a group whose members all have what this process has."""

    name = "emulated"

    def __init__(self, ranks: int) -> None:
        self.size = ranks
        self.network = (np.inf, 0.0)

    def all_reduce(self, array: Any) -> None:
        """Sum equal arrays, and take the time of the network for it."""
        ready = time.perf_counter() + predict(self.size, 0.0, 0.0, array.nbytes, *self.network)
        array *= self.size
        time.sleep(max(0.0, ready - time.perf_counter()))

    def gather(self, values: Any) -> list[Any]:
        """All ranks have the same."""
        return [values] * self.size

    def broadcast(self, array: Any, root: int = 0) -> None:
        """What rank 0 has is here already."""

    def barrier(self) -> None:
        """The others are always there."""


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds per update by network and way, ways alternating; and the answer of "auto"."""
    group = Emulated(arguments.ranks)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(arguments.batch, arguments.width)).astype(np.float32)
    y = rng.integers(0, 10, arguments.batch)
    part = Part([x, y], arguments.batch, arguments.batch * arguments.ranks)
    trainers = {
        way: Trainer.from_directory(folder, distributed=group, **options)
        for way, options in WAYS.items()
    }
    for trainer in trainers.values():
        trainer._engine.run(part)
    found: dict[str, dict[str, float]] = {}
    for name, network in {"none": (np.inf, 0.0), **SPEEDS}.items():
        group.network = network
        times: dict[str, list[float]] = {way: [] for way in trainers}
        for _ in range(arguments.rounds):
            for way, trainer in trainers.items():
                began = time.perf_counter()
                trainer._engine.run(part)
                times[way].append(time.perf_counter() - began)
        found[name] = {way: float(np.median(spent)) for way, spent in times.items()}
        found[name]["auto"] = answer(folder, group, part)
    return found


def answer(folder: Path, group: Emulated, part: Part) -> float:
    """Whether "auto" overlaps, and so that it has decided."""
    engine = Trainer.from_directory(folder, distributed=group, bucket_mb=4.0)._engine
    while not engine.overlap.decided:
        engine.run(part)
    return float(engine.overlap.on)


def report(found: dict[str, dict[str, float]], ranks: int, nbytes: float) -> None:
    """Print a table, with what `predict` gives for as many buckets."""
    step = found["none"]["plain"]
    print(f"{ranks} emulated ranks, {nbytes / 1e6:.1f} MB of gradients; milliseconds per update")
    for name, times in found.items():
        bandwidth, latency = SPEEDS.get(name, (np.inf, 0.0))
        columns = []
        for way, options in WAYS.items():
            buckets = (
                round(np.ceil(nbytes / 1e6 / options["bucket_mb"])) if options["overlap"] else 1
            )
            paper = predict(ranks, step, 0.0, nbytes, bandwidth, latency, buckets, step / 2)
            columns.append(f"{way} {1e3 * times[way]:6.1f} (on paper {1e3 * paper:6.1f})")
        print(f"{name:10s} ", "  ".join(columns), f" auto: {'on' if times['auto'] else 'off'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), arguments.width, arguments.layers)
        found = measure(arguments, Path(folder))
    weights = arguments.layers * arguments.width**2 + 10 * arguments.width
    report(found, arguments.ranks, 4.0 * weights)


if __name__ == "__main__":
    main()
