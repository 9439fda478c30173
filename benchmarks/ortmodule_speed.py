"""ORTModule against PyTorch eager: forward, backward and SGD step, interleaved in one process.

python -m benchmarks.ortmodule_speed [--threads 1] [--seconds 10] [names…]

CPU time is reported next to wall time: on a busy machine only that says something.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

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
    "encoder": lambda: (models.Encoder(), torch.randint(0, 8000, (16, 128))),
}


def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    module(x).square().mean().backward()
    optimizer.step()


def measure(name: str, seconds: float) -> str:
    torch.manual_seed(0)
    module, x = CASES[name]()
    sides = [ORTModule(module, exporter="torchscript"), copy.deepcopy(module)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-5) for m in sides]
    for side, optimizer in zip(sides, optimizers):
        step(side, optimizer, x)
    start = time.perf_counter()
    step(sides[1], optimizers[1], x)
    repeat = max(1, int(0.05 / (time.perf_counter() - start)))
    wall: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(wall[1]) < 5:
        for i, (side, optimizer) in enumerate(zip(sides, optimizers)):
            step(side, optimizer, x)  # the other side's data is still in the caches
            used, start = time.process_time(), time.perf_counter()
            for _ in range(repeat):
                step(side, optimizer, x)
            wall[i].append((time.perf_counter() - start) / repeat * 1e3)
            cpu[i].append((time.process_time() - used) / repeat * 1e3)
    best = [min(w) for w in wall]
    middle = [statistics.median(w) for w in wall]
    least = [min(c) for c in cpu]
    return (
        f"| {name} | {best[0]:.3g} | {best[1]:.3g} | {best[1] / best[0]:.2f} | "
        f"{middle[1] / middle[0]:.2f} | {least[1] / least[0]:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of: " + ", ".join(CASES))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print("| model | ORTModule, best ms | eager, best ms | faster by | by median | by CPU time |")
    print("|---|---|---|---|---|---|")
    for name in options.names or CASES:
        print(measure(name, options.seconds), flush=True)


if __name__ == "__main__":
    main()
