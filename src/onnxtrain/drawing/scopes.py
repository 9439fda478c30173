"""Draw a scope of a model, such as a layer of a network, as one box."""

from __future__ import annotations

import fnmatch
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from .boxes import MARKS, NodeBox
from .kinds import is_gradient

SHOWN = 30
"""Operators and nodes that a collapsed box tells."""
DEEPEST = 50
"""Scopes of a node that count; a stranger's name may have a million."""
NAMESPACE = "namespace"
"""Where PyTorch's newer exporter writes the scopes of a node, whose name has none."""
Grouping = Callable[[Sequence[str]], str]
"""The name of the group to which the scopes of a node belong; "" for none."""


def by_depth(depth: int) -> Grouping:
    """Nodes that share so many scopes belong together."""
    return lambda scopes: "/".join(scopes[:depth])


def by_patterns(patterns: Sequence[str]) -> Grouping:
    """Nodes inside a scope that matches, such as ``encoder`` or ``encoder/layer.*``."""

    def group(scopes: Sequence[str]) -> str:
        names = ("/".join(scopes[: i + 1]) for i in range(len(scopes)))
        return next((n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns)), "")

    return group


# --- the scopes of a node -------------------------------------------------------------------------


def node_scopes(graph: onnx.GraphProto) -> list[list[str]]:
    """The scopes around each node; those around a gradient node are its forward node's."""
    written = {node.name: scopes for node in graph.node if (scopes := _written(node))}
    return [_scopes(node.name, written)[:DEEPEST] for node in graph.node]


def _written(node: onnx.NodeProto) -> list[str]:
    """Scopes in the metadata, as ``": Net/encoder: Encoder/encoder.0: Layer/linear"``."""
    entries = [p.value for p in node.metadata_props if p.key == NAMESPACE]
    parts = [part.partition(":")[0].strip() for part in (entries[0] if entries else "").split("/")]
    scopes: list[str] = []
    for part in parts[:-1]:  # the last is the operation itself
        outer = ".".join(scopes)
        name = part.removeprefix(f"{outer}.") if outer else part
        scopes += [name] if name else []
    return scopes


def _scopes(name: str, written: Mapping[str, list[str]]) -> list[str]:
    scopes = name.strip("/").split("/")
    if is_gradient(scopes[:-1]):
        at = next(i for i, scope in enumerate(scopes) if scope.endswith("_grad"))
        forward = "/".join(scopes[: at + 1]).removesuffix("_grad")
        return written.get(forward, scopes[:at])
    return written.get(name, scopes[:-1])


# --- one box for several --------------------------------------------------------------------------


def collapse(boxes: list[NodeBox], group_of: Grouping) -> list[NodeBox]:
    """The same drawing with one box for each group of nodes, halves apart.

    Where a group would read what is computed from itself, it is drawn as two: what is drawn has no
    circles.
    """
    groups = _Groups(boxes)
    for i, box in enumerate(boxes):
        name = group_of(box.scopes) if box.kind in MARKS else ""
        groups.put(i, (name, box.kind) if name else None)
    edges = [
        _edges(i, [boxes[m] for m in members], groups.home)
        for i, members in enumerate(groups.members)
    ]
    crossing = {value for read in edges for value in read.values()}
    names = {group: name for (name, _), group in groups.all_keys}
    joined = []
    for i, members in enumerate(groups.members):
        inside = [boxes[m] for m in members]
        box = inside[0] if len(inside) == 1 else _together(names[i], inside, crossing)
        box.inputs, box.values = list(edges[i]), list(edges[i].values())
        joined.append(box)
    return _in_order(joined)


def _edges(group: int, members: list[NodeBox], home: Sequence[int]) -> dict[int, str]:
    """The groups that a group reads, each with the first value that comes from there.

    Between two boxes there is one line, however many values take that way.
    """
    edges: dict[int, str] = {}
    for box in members:
        for source, value in zip(box.inputs, box.values):
            if home[source] != group:
                edges.setdefault(home[source], value)
    return edges


class _Groups:
    """Boxes gathered one after the other, in an order in which each follows what it reads."""

    def __init__(self, boxes: Sequence[NodeBox]) -> None:
        self.boxes = boxes
        self.members: list[list[int]] = []
        self.home: list[int] = []
        self.all_keys: list[tuple[tuple[str, str], int]] = []
        self._reads: list[set[int]] = []
        self._newest: dict[tuple[str, str], int] = {}

    def put(self, box: int, key: tuple[str, str] | None) -> None:
        """Add the next box to the newest group of its key, or to a new one."""
        read = {self.home[i] for i in self.boxes[box].inputs}
        group = self._newest.get(key) if key is not None else None
        if group is None or self._leads(group, read - {group}):
            group = len(self.members)
            self.members.append([])
            self._reads.append(set())
            if key is not None:
                self._newest[key] = group
                self.all_keys.append((key, group))
        self.members[group].append(box)
        self._reads[group] |= read - {group}
        self.home.append(group)

    def _leads(self, group: int, others: set[int]) -> bool:
        """Whether one of the others is computed from the group."""
        seen: set[int] = set()
        waiting = list(others)
        while waiting:
            now = waiting.pop()
            if now == group:
                return True
            if now not in seen:
                seen.add(now)
                waiting.extend(self._reads[now])
        return False


def _together(name: str, boxes: list[NodeBox], crossing: Collection[str]) -> NodeBox:
    operators = Counter(box.label for box in boxes)
    counted = ", ".join(f"{n} {op}" for op, n in operators.most_common(SHOWN))
    inside = {value for box in boxes for value in box.values}
    results = [o for box in boxes for o in box.outputs if o in crossing or o not in inside]
    facts = [("scope", name), ("half", boxes[0].kind), ("nodes", str(len(boxes)))]
    facts += [("consists of", counted)]
    facts += [("node", f"{box.label}  {box.name}") for box in boxes[:SHOWN]]
    return NodeBox(
        name, name.rpartition("/")[2], boxes[0].kind,
        constants=list(dict.fromkeys(c for box in boxes for c in box.constants)),
        outputs=results, detail=f"{len(boxes)} nodes", facts=facts, nodes=len(boxes),
    )  # fmt: skip


def _in_order(boxes: list[NodeBox]) -> list[NodeBox]:
    """The boxes so that each follows what it reads; the first ones first where that is open."""
    readers: dict[int, list[int]] = defaultdict(list)
    missing = [len(set(box.inputs)) for box in boxes]
    for i, box in enumerate(boxes):
        for source in set(box.inputs):
            readers[source].append(i)
    ready = [i for i, number in enumerate(missing) if not number]
    order: list[int] = []
    while ready:
        now = heapq.heappop(ready)
        order.append(now)
        for reader in readers[now]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    place = {old: new for new, old in enumerate(order)}
    for box in boxes:
        box.inputs = [place[i] for i in box.inputs]
    return [boxes[i] for i in order]
