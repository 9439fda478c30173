"""Step time and share of communication against the number of ranks.

    python -m benchmarks.distributed_scaling [--ranks 1 2 4] [--width 1024] [--batch 256]

Starts itself under ``mpiexec`` once per number of ranks, on this machine. The global batch stays
the same (strong scaling). Also measured: the all-reduce alone by size, whether cutting it into
buckets that overlap with the update pays, and the memory of a sharded optimizer. From the numbers
follows a model of the cost for ranks that this machine does not have (`predict`). Overlap with the
backward pass, which two cores cannot show, is measured by `benchmarks.emulated_network`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = {"10 Gbit/s Ethernet": (1.1e9, 30e-6), "100 Gbit/s InfiniBand": (11e9, 2e-6)}
"""Bytes per second and seconds per message that such networks reach in practice."""


def predict(
    ranks: int,
    compute: float,
    update: float,
    nbytes: float,
    bandwidth: float,
    latency: float,
    buckets: int = 1,
    backward: float = 0.0,
) -> float:
    """Seconds per step with a fixed batch per rank.

    t(P) = compute + update + exchange, and exchange = 2·(P−1)/P · bytes / bandwidth + K · 2·log₂(P)
    · latency: an all-reduce by recursive halving and doubling, as MPI libraries do it, in K
    messages. The bytes per rank hardly depend on P; the number of messages grows with log P.

    With K > 1 `buckets` that leave evenly during the `backward` part of compute, the exchange shows
    as max(exchange / K, exchange − (K−1)/K · backward): the last bucket always, the others where
    they take longer than what is computed meanwhile.
    """
    messages = 2 * buckets * np.log2(ranks) * latency
    exchange = 2 * (ranks - 1) / ranks * nbytes / bandwidth + messages
    hidden = (buckets - 1) / buckets
    return float(compute + update + max(exchange / buckets, exchange - hidden * backward))


def make(folder: Path, width: int, layers: int = 2) -> None:
    import onnx
    import onnx.parser

    from onnxtrain import artifacts

    weights = [f"w{i}" for i in range(layers + 1)]
    hidden = " ".join(
        f"a{i} = MatMul({f'h{i}' if i else 'x'}, w{i}) h{i + 1} = Relu(a{i})" for i in range(layers)
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        mlp (float[N, {width}] x) => (float[N, 10] y) {{
            {hidden}
            y = MatMul(h{layers}, w{layers})
        }}"""
    )
    rng = np.random.default_rng(0)
    for name in weights:
        shape = (width, 10 if name == weights[-1] else width)
        value = (rng.normal(size=shape) * (2 / shape[0]) ** 0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    artifacts.generate_artifacts(
        model,
        requires_grad=weights,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def worker(folder: str, width: int, batch: int, steps: int) -> None:
    """One rank: times of a step and of its parts; rank 0 prints them."""
    from onnxtrain.api import Trainer
    from onnxtrain.distributed import connect, share
    from onnxtrain.distributed.sampler import Part

    group = connect("mpi")
    assert group is not None
    found: dict[str, Any] = {"ranks": group.size}
    rng = np.random.default_rng(1)
    x = rng.normal(size=(batch, width)).astype(np.float32)
    y = rng.integers(0, 10, batch)
    start, stop = share(batch, group.rank, group.size)
    part = Part([x[start:stop], y[start:stop]], stop - start, batch)
    for sharded in (False, True):
        trainer = Trainer.from_directory(
            folder, distributed=group, shard_optimizer=sharded, overlap=False
        )
        engine = trainer._engine
        spent = {"communication": 0.0}
        undo = [
            timed(group, name, spent) for name in ("all_reduce", "reduce_slices", "gather_slices")
        ]
        times, shares = [], []
        for _ in range(steps):
            group.barrier()
            spent["communication"] = 0.0
            began = time.perf_counter()
            engine.run(part)
            times.append(time.perf_counter() - began)
            shares.append(spent["communication"])
        for put_back in undo:
            put_back()
        moments = (
            engine.optimizer.nbytes
            if sharded
            else sum(
                b.data.nbytes
                for s in trainer.state.training_state.optimizer.states.values()
                for b in s.buffers.values()
            )
        )
        found["sharded" if sharded else "plain"] = {
            "step": float(np.median(times)),
            "communication": float(np.median(shares)),
            "moment_bytes": moments,
        }
        found["gradient_bytes"] = engine._wide.nbytes
    if group.size > 1:
        found["all_reduce"] = sizes(group)
        found["buckets"] = buckets(group, found["gradient_bytes"] // 4)
    if group.is_main:
        print(json.dumps(found), flush=True)


def timed(group: Any, name: str, spent: dict[str, float]) -> Any:
    """Count the time inside a collective call; gives a function that stops that."""
    real = getattr(group, name)

    def counted(*arguments: Any) -> None:
        began = time.perf_counter()
        real(*arguments)
        spent["communication"] += time.perf_counter() - began

    setattr(group, name, counted)
    return lambda: setattr(group, name, real)


def sizes(group: Any) -> dict[int, float]:
    """Median seconds of an all-reduce, by bytes."""
    found = {}
    for nbytes in (1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 25):
        data, times = np.zeros(nbytes // 4, np.float32), []
        for _ in range(15):
            group.barrier()
            began = time.perf_counter()
            group.all_reduce(data)
            times.append(time.perf_counter() - began)
        found[nbytes] = float(np.median(times))
    return found


def buckets(group: Any, size: int) -> dict[int, tuple[float, float]]:
    """Exchange and update (AdamW's arithmetic) by number of pieces.

    First: every piece has an all-reduce of its own and is updated while the next one travels.
    Second, for comparison: one all-reduce, then the same pieces are updated.
    """
    comm, mpi = group._comm, group._mpi
    gradient, weight, m, v = (np.zeros(size, np.float32) for _ in range(4))

    def update(a: int, b: int) -> None:
        g = gradient[a:b]
        m[a:b] = 0.9 * m[a:b] + 0.1 * g
        v[a:b] = 0.999 * v[a:b] + 0.001 * g * g
        weight[a:b] -= 1e-3 * m[a:b] / (np.sqrt(v[a:b]) + 1e-8)

    def overlapped(pieces: list[tuple[int, int]]) -> None:
        requests = [comm.Iallreduce(mpi.IN_PLACE, gradient[a:b]) for a, b in pieces]
        for request, (a, b) in zip(requests, pieces):
            while not request.Test():
                time.sleep(0)
            update(a, b)

    def in_turn(pieces: list[tuple[int, int]]) -> None:
        group.all_reduce(gradient)
        for a, b in pieces:
            update(a, b)

    found = {}
    for count in (1, 2, 4, 8, 16):
        pieces = list(pairwise(np.linspace(0, size, count + 1).astype(int).tolist()))
        times: list[list[float]] = [[], []]
        for _ in range(11):  # alternating, so that a busy machine is unfair to neither
            for way, spent in zip((overlapped, in_turn), times):
                group.barrier()
                began = time.perf_counter()
                way(pieces)
                spent.append(time.perf_counter() - began)
        found[count] = (float(np.median(times[0])), float(np.median(times[1])))
    return found


def launch(ranks: int, arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise SystemExit('mpiexec is missing: pip install "onnxtrain[mpi]"')
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "benchmarks.distributed_scaling",
               "--worker", folder, "--width", str(arguments.width), "--batch",
               str(arguments.batch), "--steps", str(arguments.steps)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def report(runs: list[dict[str, Any]]) -> None:
    print("ranks   step ms   communication   sharded ms   moments per rank: plain, sharded")
    for run in runs:
        plain, sharded = run["plain"], run["sharded"]
        print(
            f"{run['ranks']:5d}  {1e3 * plain['step']:8.1f}   "
            f"{plain['communication'] / plain['step']:12.0%}   {1e3 * sharded['step']:10.1f}   "
            f"{plain['moment_bytes'] / 1e6:.2f} MB, {sharded['moment_bytes'] / 1e6:.2f} MB"
        )
    for run in runs:
        if "all_reduce" in run:
            each = ", ".join(
                f"{int(n) / 1e6:.3g} MB {1e3 * t:.2f} ms" for n, t in run["all_reduce"].items()
            )
            print(f"all-reduce, {run['ranks']} ranks: {each}")
            each = ", ".join(
                f"{n} pieces {1e3 * a:.1f} / {1e3 * b:.1f} ms"
                for n, (a, b) in run["buckets"].items()
            )
            print(f"exchange and update, overlapped / in turn, {run['ranks']} ranks: {each}")
    alone = next((r for r in runs if r["ranks"] == 1), None)
    if alone is None:
        return
    step, nbytes = alone["plain"]["step"], alone["gradient_bytes"]
    print(f"\non paper: {nbytes / 1e6:.1f} MB of gradients, {1e3 * step:.1f} ms per step and rank")
    networks = {**measured(runs), **NETWORKS}
    for name, (bandwidth, latency) in networks.items():
        for ranks in (8, 64, 512):
            total = predict(ranks, step, 0.0, nbytes, bandwidth, latency)
            print(
                f"{name:22s} {ranks:4d} ranks  {1e3 * total:7.1f} ms per step  "
                f"{step / total:.0%} of linear"
            )


def measured(runs: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """What two ranks reach here through shared memory: from a large and a tiny all-reduce."""
    pair = next((r for r in runs if r["ranks"] == 2), None)
    if pair is None:
        return {}
    times = {int(n): t for n, t in pair["all_reduce"].items()}
    large = max(times)
    return {"as measured here": (large / times[large], times[min(times)] / 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.width, arguments.batch, arguments.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), arguments.width)
        report([launch(n, arguments, folder) for n in arguments.ranks])


if __name__ == "__main__":
    main()
