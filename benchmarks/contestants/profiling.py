"""Time per operator type, from onnxruntime's own profiler, in a run that is not timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOP = 8
CONTROL_FLOW = ("Scan", "Loop", "If")


class Profiler:
    """From its creation on, every onnxruntime session writes a trace into the folder."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.sessions: list[Any] = []
        sessions, number = self.sessions, iter(range(10**6))

        class Options(onnxruntime.SessionOptions):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.enable_profiling = True
                self.profile_file_prefix = str(folder / f"profile{next(number)}")

        class Session(onnxruntime.InferenceSession):  # type: ignore[misc, name-defined]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                sessions.append(self)

        onnxruntime.SessionOptions, onnxruntime.InferenceSession = Options, Session

    def operators(self, seconds: float, steps: int, before: int) -> dict[str, float]:
        """Share of each operator type in the last `steps` steps, which took `seconds`.

        Args:
            seconds: of these steps.
            steps: how many are counted.
            before: how many there were before them.
        """
        spent: dict[str, float] = {}
        for session in self.sessions:
            file = session.end_profiling()
            if file:
                events = json.loads(Path(file).read_text())
                for name, time in own_times(events, steps, steps + before).items():
                    spent[name] = spent.get(name, 0.0) + time * 1e-6
        return shares(spent, seconds)


def own_times(events: list[dict[str, Any]], steps: int, all_steps: int) -> dict[str, float]:
    """Microseconds by operator type in the last steps; bodies do not count twice."""
    runs = sorted(e["ts"] for e in events if e["name"] == "model_run")
    per_step = len(runs) / all_steps  # an update in pieces runs several times a step
    start = runs[-round(steps * per_step)] if runs and per_step * steps >= 1 else float("inf")
    nodes = [
        e for e in events
        if e.get("cat") == "Node" and e["name"].endswith("_kernel_time") and e["ts"] >= start
    ]  # fmt: skip
    nodes.sort(key=lambda e: (e["ts"], -e["dur"]))
    spent: dict[str, float] = {}
    around: list[dict[str, Any]] = []
    for event in nodes:
        kind = event["args"]["op_name"]
        spent[kind] = spent.get(kind, 0.0) + event["dur"]
        while around and event["ts"] >= around[-1]["ts"] + around[-1]["dur"]:
            around.pop()
        if around:
            outer = around[-1]["args"]["op_name"]
            spent[outer] -= event["dur"]
        if kind in CONTROL_FLOW:
            around.append(event)
    return spent


def shares(spent: dict[str, float], seconds: float) -> dict[str, float]:
    """The largest as shares of the whole, then all others, then what is outside of any node."""
    order = sorted(spent, key=lambda name: spent[name], reverse=True)
    found = {name: spent[name] / seconds for name in order[:TOP]}
    if order[TOP:]:
        found[f"{len(order) - TOP} others"] = sum(spent[n] for n in order[TOP:]) / seconds
    found["outside nodes"] = max(0.0, 1 - sum(spent.values()) / seconds)
    return found
