"""What a pass is, what it is told, and the record of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..preparing import preparing
from .segments import Recompute


@dataclass
class Context:
    """What passes are told besides the model.

    Attributes:
        wrt: names of what gradients are taken with respect to.
        of: names of what is differentiated.
        no_gradient: nodes or operators whose outputs count as constants.
        recompute: what the backward half computes again.
        counter: whether random operators draw from a counter that the caller feeds.
        checked_labels: inputs whose class labels are checked before they are fed.
        gradients: names of the outputs that are gradients, once there are some.
    """

    wrt: Sequence[str]
    of: Sequence[str]
    no_gradient: Collection[str]
    recompute: Recompute
    counter: bool = False
    checked_labels: Sequence[str] = ()
    gradients: Sequence[str] = ()


@dataclass(frozen=True)
class Pass:
    """One rewriting of a model.

    Attributes:
        name: for people.
        gains: what the pass gains, in a line.
        run: the pass itself, model → model.
    """

    name: str
    gains: str
    run: Callable[[ir.Model, Context], ir.Model]


@dataclass
class Record:
    """One stage or pass that has run."""

    name: str
    gains: str
    nodes_before: int
    nodes_after: int = 0
    seconds: float = 0.0

    def ends_with(self, model: ir.Model) -> None:
        """Note the result."""
        self.nodes_after = count_nodes(model)


@dataclass
class Trace:
    """The stages and passes that a model went through, in order."""

    records: list[Record] = field(default_factory=list)

    def run(self, step: Pass, model: ir.Model, context: Context) -> ir.Model:
        """Run a pass, and remember it."""
        with self.record(step.name, model, step.gains) as record:
            model = step.run(model, context)
            record.ends_with(model)
        return model

    @contextlib.contextmanager
    def record(self, name: str, model: ir.Model, gains: str) -> Iterator[Record]:
        """Time what happens inside."""
        record = Record(name, gains, count_nodes(model))
        started = time.perf_counter()
        with preparing(f"running {name!r}", record.nodes_before):
            yield record
        record.seconds = time.perf_counter() - started
        self.records.append(record)

    def __str__(self) -> str:
        width = max((len(r.name) for r in self.records), default=0)
        return "\n".join(
            f"{r.name:<{width}}  {r.nodes_before:>6} → {r.nodes_after:>6} nodes  "
            f"{r.seconds * 1e3:>8.1f} ms  {r.gains}"
            for r in self.records
        )


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph and its subgraphs."""
    return sum(1 for _ in model.graph.all_nodes())
