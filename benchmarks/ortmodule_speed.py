"""ORTModule against PyTorch eager: forward, backward and SGD step, interleaved in one process.

python -m benchmarks.ortmodule_speed [--threads 1] [--seconds 10] [--save file.json] [names…]

CPU time is reported next to wall time: on a busy machine only that says something. `--save` adds
the results to a file, and the table is that of all results in it. With `--serve` the process makes
all models once, and measures the one whose name it reads, line by line: for `benchmarks.versions`.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks import torch_models as models
from onnxtrain.torch import ORTModule

CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "small MLP": lambda: (models.MLP(100, 50, 10, 1), torch.randn(15, 100)),
    "MLP": lambda: (models.MLP(784, 512, 512, 10), torch.randn(64, 784)),
    "CNN": lambda: (models.MnistCNN(), torch.randn(64, 1, 28, 28)),
    "LSTM": lambda: (models.LSTMClassifier(), torch.randn(50, 32, 32)),
    "ResNet-18": lambda: (models.ResNet18(), torch.randn(8, 3, 64, 64)),
    "language model": lambda: (models.TransformerLM(12007), torch.randint(0, 12007, (35, 20))),
    "encoder": lambda: (models.Encoder(), torch.randint(0, 8000, (16, 128))),
}


def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    module(x).square().mean().backward()
    optimizer.step()


class Pair:
    """A model on both sides, ready to be measured."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        module, self.x = CASES[name]()
        sides = [ORTModule(module, exporter="torchscript"), copy.deepcopy(module)]
        self.sides = [(m, torch.optim.SGD(m.parameters(), lr=1e-5)) for m in sides]
        for module, optimizer in self.sides:
            step(module, optimizer, self.x)
        start = time.perf_counter()
        step(*self.sides[1], self.x)
        self.repeat = max(1, int(0.05 / (time.perf_counter() - start)))

    def measure(self, seconds: float, least: int = 5) -> dict[str, float]:
        """Best and median wall times of a step, least CPU time, of both sides in milliseconds."""
        x, repeat = self.x, self.repeat
        wall: list[list[float]] = [[], []]
        cpu: list[list[float]] = [[], []]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(wall[1]) < least:
            for i, (module, optimizer) in enumerate(self.sides):
                step(module, optimizer, x)  # the other side's data is still in the caches
                used, start = time.process_time(), time.perf_counter()
                for _ in range(repeat):
                    step(module, optimizer, x)
                wall[i].append((time.perf_counter() - start) / repeat * 1e3)
                cpu[i].append((time.process_time() - used) / repeat * 1e3)
        times = {}
        for side, of, used_by in zip(("ortmodule", "eager"), wall, cpu):
            times[f"{side}_best"], times[f"{side}_median"] = min(of), statistics.median(of)
            times[f"{side}_cpu"] = min(used_by)
        return times


def serve(names: Sequence[str], seconds: float) -> None:
    """Make the models, say so, and measure each as often as its name is read."""
    pairs = {name: Pair(name) for name in names}
    print(json.dumps(list(pairs)), flush=True)
    for line in sys.stdin:
        print(json.dumps(pairs[line.strip()].measure(seconds, least=2)), flush=True)


def row(name: str, found: dict[str, float]) -> str:
    ratios = [found[f"eager_{k}"] / found[f"ortmodule_{k}"] for k in ("best", "median", "cpu")]
    return (
        f"| {name} | {found['ortmodule_best']:.3g} | {found['eager_best']:.3g} | "
        + " | ".join(f"{r:.2f}" for r in ratios)
        + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of: " + ", ".join(CASES))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--save", type=Path, help="JSON file for the results")
    parser.add_argument("--serve", action="store_true", help="measure what is asked for on stdin")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.serve:
        serve(options.names or list(CASES), options.seconds)
        return
    results: dict[str, dict[str, float]] = {}
    if options.save and options.save.exists():
        results = json.loads(options.save.read_text())["milliseconds"]
    for name in options.names or CASES:
        results[name] = Pair(name).measure(options.seconds)
        if options.save:
            about = {
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "onnxruntime": onnxruntime.__version__,
            }
            saved = {**about, "milliseconds": results}
            options.save.write_text(json.dumps(saved, indent=1) + "\n")
    print("| model | ORTModule, best ms | eager, best ms | faster by | by median | by CPU time |")
    print("|---|---|---|---|---|---|")
    for name in CASES:
        if name in results:
            print(row(name, results[name]))


if __name__ == "__main__":
    main()
