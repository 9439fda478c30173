"""One network of the benchmark, in a process of its own: prepared once, measured later.

What is prepared is written into a folder: the compiled kernels of PyTorch (in its own caches), the
exported network and its artifacts, the first losses of all sides and of PyTorch in float64, and
how many seconds of the processor each side took until its first step was done.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import json
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT

THREADS, RATE, DECAY = 2, 1e-5, 0.01
SIDES = ("eager", "compiled", "ours")
ORDER = ("eager", "ours", "compiled")
"""In which the sides are prepared: what takes longest comes last."""
EXACT = "float64"
STEPS = 3
"""Whose losses are compared."""
TURN = 0.15
"""Seconds of a turn that are timed, or one step."""
NOTES = "prepared.json"
PACKAGES = ("onnxruntime", "torch", "transformers", "timm")
INTERNAL = ("sources", "inputs")
"""What of the notes is no part of a row."""

Row = dict[str, Any]
Step = Callable[[], float]


def settings(folder: Path) -> dict[str, str]:
    """Variables of a worker's environment: PyTorch keeps what it has compiled under the folder.

    Kernels are compiled one after the other in the process itself, so that its seconds are known.
    """
    caches = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "ONNXTRAIN_QUIET": "1"}
    return {**os.environ, **caches, **places, "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def folder_of(folder: Path, name: str) -> Path:
    """Where what is prepared of a network lies."""
    return folder / name.replace("/", "--")


def sources() -> str:
    """A digest of what writes artifacts; those of other sources are written anew."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "onnxtrain").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def definition(case: Any) -> str:
    """A digest of a network and its batch: what was prepared for another one is of no use."""
    config = getattr(getattr(case.module, "model", None), "config", "")
    sizes = {name: tuple(value.shape) for name, value in case.module.state_dict().items()}
    versions = [importlib.metadata.version(name) for name in PACKAGES]
    known = (str(case.module), str(config), sizes, versions, RATE, DECAY, STEPS)
    digest = hashlib.sha256(repr(known).encode())
    for tensor in case.inputs:  # drawn after the weights: other draws are seen here
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


# --- prepared once --------------------------------------------------------------------------------


def prepare(name: str, folder: Path) -> tuple[Any, Row]:
    """The network, and what is known of it before it is timed; what was done is not done again."""
    case, notes = _opened(name, folder)
    place = folder_of(folder, name)
    for side, make in _makers(case, place, notes).items():
        if is_done(notes, side):
            continue
        try:
            began = _processor_seconds()
            if side == "ours":
                _export(case, place, notes)
            step = make()
            losses = [step()]
            notes[f"{side}_first"] = _processor_seconds() - began
            notes["losses"][side] = losses + [step() for _ in range(STEPS - 1)]
        except Exception as error:
            notes[f"{side}_error"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        _write(place, notes)
    if not is_done(notes, EXACT):
        notes["losses"][EXACT] = exact_losses(case)
        _write(place, notes)
    return case, notes


def read_notes(place: Path) -> Row:
    """What was written about a network that is prepared, or has been begun."""
    with suppress(FileNotFoundError, json.JSONDecodeError):
        notes: Row = json.loads((place / NOTES).read_text("utf-8"))
        return notes
    return {}


def is_prepared(place: Path) -> bool:
    """Whether nothing is left to prepare, with these sources."""
    notes = read_notes(place)
    return notes.get("sources") == sources() and all(is_done(notes, s) for s in (*SIDES, EXACT))


def is_done(notes: Row, side: str) -> bool:
    """Whether a side has been prepared, or could not be."""
    return side in notes["losses"] or f"{side}_error" in notes


def give_up(place: Path, reason: str) -> bool:
    """Notes why the side that was being prepared has no times; False if no side was."""
    notes = read_notes(place)
    for side in (*ORDER, EXACT):
        if notes and not is_done(notes, side):
            _write(place, notes | {f"{side}_error": reason})
            return True
    return False


def _opened(name: str, folder: Path) -> tuple[Any, Row]:
    """The network, and what has been prepared of it and of nothing else."""
    import torch

    from benchmarks import network_cases

    torch.set_num_threads(THREADS)
    case = network_cases.case(name)
    notes: Row = {
        "name": name, "definition": definition(case), "sources": sources(), "losses": {},
        "parameters": sum(p.numel() for p in case.module.parameters()),
    }  # fmt: skip
    place = folder_of(folder, name)
    place.mkdir(parents=True, exist_ok=True)
    before = read_notes(place)
    if before.get("definition") == notes["definition"]:
        if before["sources"] != notes["sources"]:  # torch's sides are as they were
            before["losses"].pop("ours", None)
            before.pop("ours_error", None)
        notes = before | {"sources": notes["sources"]}
    _write(place, notes)
    return case, notes


def _write(place: Path, notes: Row) -> None:
    fresh = place / f"{NOTES}.new"
    fresh.write_text(json.dumps(notes, indent=1), "utf-8")
    fresh.replace(place / NOTES)


def _makers(case: Any, place: Path, notes: Row) -> dict[str, Callable[[], Step]]:
    makers = {
        "eager": lambda: torch_step(case, is_compiled=False),
        "compiled": lambda: torch_step(case, is_compiled=True),
        "ours": lambda: our_step(case, place, notes),
    }
    return {side: makers[side] for side in ORDER}


def _processor_seconds() -> float:
    """Of this process and of the compilers that it has started."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def exact_losses(case: Any) -> list[float]:
    """What the losses of the first steps are, by PyTorch in float64."""
    import numpy as np
    import torch

    from conformance.torch_function import TorchFunction

    function = TorchFunction(case, torch.float64)
    function.weights = [np.ones((), np.float32)]
    point = function.point()
    trained = [tensor for name, tensor in point.items() if name not in function.inputs]
    update = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        update.zero_grad(set_to_none=True)
        loss = function.loss(point)
        loss.backward()
        update.step()
        losses.append(float(loss.detach()))
    return losses


def torch_step(case: Any, *, is_compiled: bool) -> Step:
    """A step of PyTorch's, on a copy of the module."""
    import torch

    module = copy.deepcopy(case.module)
    forward = torch.compile(module) if is_compiled else module
    trained = [p for p in module.parameters() if p.requires_grad]
    update = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY, fused=True)

    def step() -> float:
        update.zero_grad(set_to_none=True)
        loss = forward(*case.inputs)
        loss.backward()
        update.step()
        return float(loss.detach())

    return step


def _export(case: Any, place: Path, notes: Row) -> None:
    """The network as an ONNX model and as artifacts, by the first exporter that can."""
    import onnxtrain
    from benchmarks.network_cases import EXPORTERS
    from conformance.exporters import EXPORTERS as BY_NAME
    from onnxtrain import optim

    refusals = []
    for exporter in EXPORTERS:
        try:
            exported = BY_NAME[exporter](case)
            break
        except Exception as error:
            refusals.append(error)
    else:
        raise refusals[0]
    trained = {n for n, p in case.module.named_parameters() if p.requires_grad}
    onnxtrain.generate_artifacts(
        exported.model, artifact_directory=str(place), no_gradient=exported.barriers,
        requires_grad=[graph for own, graph in exported.names.items() if own in trained],
        optimizer=optim.adamw(preset="torch", weight_decay=DECAY),
    )  # fmt: skip
    stored = {i.name for i in exported.model.graph.initializer}
    named = [i.name for i in exported.model.graph.input if i.name not in stored]
    notes |= {"exporter": exporter, "inputs": named}


def our_step(case: Any, place: Path, notes: Row) -> Step:
    """Module and Optimizer on the artifacts that are in the folder."""
    from onnxtrain import CheckpointState, Module, Optimizer

    state = CheckpointState.load_checkpoint(str(place / "checkpoint"))
    module = Module(str(place / "training_model.onnx"), state)
    update = Optimizer(str(place / "optimizer_model.onnx"), module)
    update.set_learning_rate(RATE)
    feeds = {f"input_{i}": tensor.numpy() for i, tensor in enumerate(case.inputs)}
    batch = [feeds[name] for name in notes["inputs"]]

    def step() -> float:
        loss = module(*batch)
        update.step()
        module.lazy_reset_grad()
        return float(loss[0] if isinstance(loss, list | tuple) else loss)

    return step


# --- measured, later ------------------------------------------------------------------------------


def measure(name: str, rounds: int, folder: Path) -> Row:
    """Times of all sides that are prepared; what is not prepared yet is done before."""
    case, notes = prepare(name, folder)
    row: Row = {key: value for key, value in notes.items() if key not in INTERNAL}
    steps = dict[str, Step]()
    for side, make in _makers(case, folder_of(folder, name), notes).items():
        if side in notes["losses"]:
            steps[side] = make()
            for _ in range(2):  # the first compiles, or plans memory
                steps[side]()
    row |= in_turns(steps, rounds)
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row


def in_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step by round; every turn begins with a step that is not timed."""
    times: dict[str, list[float]] = {side: [] for side in steps}
    for number in range(rounds):
        for side in list(steps) if number % 2 == 0 else reversed(list(steps)):
            steps[side]()
            count, start = 0, time.perf_counter()
            while count == 0 or time.perf_counter() - start < TURN:
                steps[side]()
                count += 1
            times[side].append((time.perf_counter() - start) / count * 1e3)
    return times
