"""Timing of training steps on random data."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..artifacts import generate_artifacts
from ..graph import load, to_proto
from ..graph.external import data_folder
from ..runtime.session.binding import HOST
from ..runtime.session.devices import session_options
from ..runtime.state.checkpoint_state import CheckpointState
from ..runtime.step.module import Module
from ..runtime.step.optimizer import Optimizer
from ..summary import ValueSummary
from .output import UserError
from .plan import Plan
from .recipes import loss_block, make_optimizer
from .settings import Settings

Array = npt.NDArray[Any]


def measure(
    settings: Settings, plan: Plan, steps: int, sizes: Mapping[str, int], folder: Path
) -> dict[str, Any]:
    """Times, memory and operators of a training step."""
    before = resident()
    generate_artifacts(
        settings.model,
        requires_grad=plan.trainable,
        loss=loss_block(settings.loss),
        optimizer=make_optimizer(settings.optimizer),
        artifact_directory=folder,
        loss_input_names=[plan.output.name],
        training_mode=settings.training_mode,
    )
    feeds = _feeds(settings, plan, sizes)
    step, forward_backward = _stepper(folder, feeds)
    times = {
        "onnxtrain, whole step": _time(step, steps, settings.batch_size),
        FORWARD_BACKWARD: _time(forward_backward, steps, settings.batch_size),
    }
    after = resident()
    torch_times, note = _torch(settings, feeds, plan, steps)
    if torch_times is not None:
        times["PyTorch, whole step"] = torch_times
    memory = {"parameters": plan.summary.memory.parameters, "estimate": plan.summary.memory.total}
    if before is not None and after is not None:
        memory["process grew by"] = max(0, after - before)
    return {
        "model": settings.model,
        "loss": settings.loss,
        "optimizer": settings.optimizer,
        "batch_size": settings.batch_size,
        "threads": os.cpu_count(),
        "times": times,
        "torch": note,
        "memory": memory,
        "operators": _operators(folder, feeds, min(steps, 20)),
    }


WARM_UP = 3
"""Steps that are not counted: the first ones allocate memory."""
FORWARD_BACKWARD = "forward and backward"
"""Name of the time without the update, which is what the operators are measured in."""
COUNTED = 0.9
"""Share of a node's runs that are counted, the fastest ones: a busy machine holds some up."""


def _time(step: Callable[[], object], steps: int, rows: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        step()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    return {
        "median_ms": median * 1e3,
        "best_ms": min(seconds) * 1e3,
        "samples_per_second": rows / median,
    }


def _stepper(
    folder: Path, feeds: Mapping[str, Array], options: Any = None
) -> tuple[Callable[[], None], Callable[[], None]]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    values = [feeds[n] for n in module.input_names()]

    def forward_backward() -> None:
        module.lazy_reset_grad()
        module(*values)

    def step() -> None:
        forward_backward()
        optimizer.step()

    return step, forward_backward


def resident() -> int | None:
    """Bytes of memory that the process holds; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


# --- random data --------------------------------------------------------------------------------


def _feeds(settings: Settings, plan: Plan, sizes: Mapping[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(settings.seed)
    feeds = {v.name: _random(v, settings.batch_size, sizes, rng) for v in plan.summary.inputs}
    if plan.loss.target in feeds:
        return feeds
    output = _forward(settings, plan, feeds)
    if plan.loss.takes_labels:
        axis = output.ndim - 1 if plan.loss.kind == "token" else 1
        shape = (*output.shape[:axis], *output.shape[axis + 1 :])
        feeds[plan.loss.target] = rng.integers(0, output.shape[axis], shape, np.int64)
    else:
        signs = plan.loss.kind == "sign"
        drawn = rng.integers(0, 2, output.shape) * 2 - 1 if signs else rng.random(output.shape)
        feeds[plan.loss.target] = drawn.astype(output.dtype)
    return feeds


def _forward(settings: Settings, plan: Plan, feeds: Mapping[str, Array]) -> Array:
    model = load(settings.model)
    session = HOST.session(
        to_proto(model).SerializeToString(), session_options(folder=data_folder(model))
    )
    inputs = {v.name: feeds[v.name] for v in plan.summary.inputs}
    return np.asarray(session.run([plan.output.name], inputs)[0])


def _has_batch_norm(plan: Plan) -> bool:
    """Then the counterpart uses the batch's statistics, and the file says others."""
    return any(o.op_type == "BatchNormalization" for o in plan.summary.operators)


def _random(
    value: ValueSummary, batch: int, sizes: Mapping[str, int], rng: np.random.Generator
) -> Array:
    if value.shape is None:
        raise UserError(f"The input {value.name!r} has no shape in the file: bench needs one.")
    shape = []
    for axis, d in enumerate(value.shape):
        if isinstance(d, int):
            shape.append(d)
        elif d in sizes:
            shape.append(sizes[str(d)])
        elif axis == 0:
            shape.append(batch)
        else:
            raise UserError(
                f"Dimension {axis} of the input {value.name!r} is symbolic: give its size with "
                f"--dim {d or 'name'}=number."
            )
    dtype = np.dtype(value.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype)


# --- operators ----------------------------------------------------------------------------------


def _operators(folder: Path, feeds: Mapping[str, Array], steps: int) -> list[dict[str, Any]]:
    """Time per operator type of forward and backward, from onnxruntime's profiler."""
    options = session_options(None)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    _, forward_backward = _stepper(folder, feeds, options)
    for _ in range(WARM_UP + steps):
        forward_backward()
    del forward_backward  # the profile is written when the session goes
    import gc

    gc.collect()
    files = sorted(folder.glob("profile*.json"))
    return read_profile(files[-1], steps) if files else []


def read_profile(path: Path, steps: int) -> list[dict[str, Any]]:
    """Milliseconds per step and operator; the file has `WARM_UP` steps before those."""
    durations: dict[tuple[str, str], list[int]] = {}
    text = path.read_text(encoding="utf-8").strip()
    for event in json.loads(text if text.endswith("]") else text.rstrip(",") + "]"):
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        node = (event["args"].get("op_name", "?"), event["name"])
        durations.setdefault(node, []).append(event["dur"])
    spent: dict[str, float] = {}
    for (operator, _), runs in durations.items():
        counted = runs[len(runs) * WARM_UP // (WARM_UP + steps) :]
        spent[operator] = spent.get(operator, 0.0) + _usual(counted) / steps
    nodes = Counter(operator for operator, _ in durations)
    total = sum(spent.values()) or 1
    return [
        {
            "operator": name,
            "nodes": nodes[name],
            "ms_per_step": duration / 1e3,
            "share": duration / total,
        }
        for name, duration in sorted(spent.items(), key=lambda item: -item[1])
    ]


def _usual(runs: Sequence[float]) -> float:
    """The sum of durations, with the slowest taken for as long as the others."""
    counted = sorted(runs)[: math.ceil(COUNTED * len(runs))]
    return statistics.mean(counted) * len(runs) if counted else 0.0


def profiler_note(figures: dict[str, Any]) -> str:
    """What to make of operators that take longer together than the step that they are of."""
    profiled = sum(o["ms_per_step"] for o in figures["operators"])
    step = figures["times"][FORWARD_BACKWARD]["median_ms"]
    if profiled < 1.5 * step:
        return ""
    return (
        f"With its profiler onnxruntime takes {profiled:.3f} ms for these {step:.3f} ms: it costs "
        "some microseconds per node. Go by the shares, and less by those of small operators."
    )


# --- PyTorch ------------------------------------------------------------------------------------


def _torch(
    settings: Settings, feeds: Mapping[str, Array], plan: Plan, steps: int
) -> tuple[dict[str, float] | None, str]:
    """The same step in PyTorch, with all threads or with one, whichever is faster.

    None, and the reason, where that is not possible.
    """
    losses = {"cross_entropy": "cross_entropy", "mse": "mse_loss", "l1": "l1_loss"}
    makers = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
    if settings.loss not in losses or settings.optimizer not in makers:
        return None, f"not compared with {settings.loss} and {settings.optimizer}"
    try:
        import torch

        from . import torch_twin
    except ImportError:
        return None, "not compared: torch is not installed"
    try:
        twin = torch_twin.Twin(to_proto(load(settings.model)), plan.trainable)
        inputs = {v.name: feeds[v.name] for v in plan.summary.inputs}
        same = torch_twin.same(twin, inputs, plan.output.name, _forward(settings, plan, feeds))
    except (torch_twin.NoTwinError, RuntimeError, TypeError, ValueError, KeyError) as error:
        return None, f"not compared: {str(error).splitlines()[0]}"
    if not same and not _has_batch_norm(plan):
        return None, "not compared: the counterpart gives other numbers"
    optimizer = getattr(torch.optim, makers[settings.optimizer])(twin.parameters, lr=1e-3)
    loss_of = getattr(torch.nn.functional, losses[settings.loss])
    tensors = {k: torch.from_numpy(v) for k, v in inputs.items()}
    target = torch.from_numpy(feeds[plan.loss.target])

    def step() -> None:
        optimizer.zero_grad()
        loss_of(twin(tensors, plan.output.name), target).backward()
        optimizer.step()

    threads = torch.get_num_threads()
    times = [_time(step, steps, settings.batch_size)]
    if threads > 1:  # small models, and busy machines, run faster on one
        torch.set_num_threads(1)
        times.append(_time(step, steps, settings.batch_size))
        torch.set_num_threads(threads)
    return min(times, key=lambda t: t["median_ms"]), ""
