"""What a model may ask for: bounds that are checked before anything is made from it.

A file of a few kilobytes can describe a graph of billions of nodes or a tensor of terabytes. What
can be counted without building it is counted here, from the wire format or the protobuf library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import ModelFileError
from .dtypes import MAX_RANK, is_shape
from .external import MAX_NESTING
from .growth import Key, check_growth, key_of
from .wire import Message

MAX_NODES = 200_000
"""Nodes after all functions are put in the place of their calls: twenty times the largest seen."""
MAX_CALL_DEPTH = 200


@dataclass(frozen=True)
class Body:
    """What a graph or function has: how many nodes, and how often it calls what."""

    nodes: int
    calls: Counter[Key]

    @classmethod
    def of(cls, operators: Iterable[Key]) -> Body:
        """From the operators of all nodes, those of subgraphs included."""
        calls = Counter(operators)
        return cls(sum(calls.values()), calls)


def check_functions(
    functions: Mapping[Key, Callable[[], Body]], main: Callable[[], Body], where: str
) -> None:
    """Refuse functions that call themselves, or grow beyond `MAX_NODES` when they are inlined.

    Args:
        functions: gives the body of each, when asked for it.
        main: that of the main graph.
        where: how messages call the model.
    """
    if not functions:
        return
    sizes: dict[Key, int] = {}
    open_keys: list[Key] = []

    def size_of(body: Body) -> int:
        return body.nodes + sum(n * size(k) for k, n in body.calls.items() if k in functions)

    def size(key: Key) -> int:
        if key in sizes:
            return sizes[key]
        if key in open_keys:
            raise ModelFileError(
                f"{where}: the function {key[1]!r} calls itself. Functions of a model are put in "
                "the place of their calls, so they must not be recursive."
            )
        if len(open_keys) >= MAX_CALL_DEPTH:
            raise ModelFileError(
                f"{where}: functions call functions more than {MAX_CALL_DEPTH} deep. Inline them "
                "with onnx.inliner first."
            )
        open_keys.append(key)
        sizes[key] = size_of(functions[key]())
        open_keys.pop()
        return sizes[key]

    total = size_of(main())
    if total > MAX_NODES:
        raise ModelFileError(
            f"{where}: it has {total} nodes when functions are put in the place of their calls; "
            f"{MAX_NODES} are the most. Functions that call each other over and over make a graph "
            "that nothing can run."
        )


def check_tensor(
    name: str, shape: Sequence[int], data: Mapping[str, int], expected: int | None, where: str
) -> None:
    """Refuse a tensor whose shape and values contradict each other.

    Args:
        name: of the tensor.
        shape: its dimensions.
        data: kind of data → bytes or elements of it; kinds that are not there are left out.
        expected: how many there should be, None where that is not known.
        where: how messages call the model.
    """
    if any(d < 0 for d in shape):
        raise ModelFileError(
            f"{where}: the tensor {name!r} has the shape {list(shape)}, and sizes cannot be "
            "negative. The file is damaged."
        )
    if not is_shape(shape):
        raise ModelFileError(
            f"{where}: the tensor {name!r} has the shape {list(shape)[: MAX_RANK + 1]}, which no "
            "array can have. The file is damaged."
        )
    if len(data) > 1:
        raise ModelFileError(
            f"{where}: the tensor {name!r} has its values twice ({' and '.join(data)}), and "
            "readers do not agree which ones count. Save the model again."
        )
    count = next(iter(data.values()), 0)
    if expected is not None and count != expected:
        raise ModelFileError(
            f"{where}: the tensor {name!r} of shape {list(shape)} needs {expected} "
            f"{next(iter(data), 'values')} and has {count}. The file is damaged."
        )


def check_model(model: Message, where: str) -> None:
    """The checks for a model in the wire format: functions, and the weights of the main graph."""
    graphs = model.messages(7)
    for graph in graphs:
        nodes = sum(number == 1 for number, _, _ in graph.fields)
        _check_count("nodes", nodes, MAX_NODES, where)
        _check_count("values", len(graph.fields) - nodes, 4 * MAX_NODES, where)
        for tensor in graph.messages(5):
            present = [k for k in _DATA_FIELDS if tensor.has(k)]
            data = {_DATA_FIELDS[k]: 0 for k in present}
            check_tensor(tensor.string(8), tensor.integers(1), data, None, where)
    functions: dict[Key, Message] = {}
    for function in model.messages(25):
        key = key_of(function.string(10), function.string(1), function.string(13))
        refuse_second(key, functions, where)
        functions[key] = function
    bodies = {key: partial(_body, [function], 7) for key, function in functions.items()}
    check_functions(bodies, partial(_body, graphs, 1), where)
    check_growth(model, functions, where)


def _check_count(kind: str, count: int, limit: int, where: str) -> None:
    if count > limit:
        raise ModelFileError(f"{where}: it has {count} {kind}; {limit} are the most.")


def refuse_second(key: Key, functions: Container[Key], where: str) -> None:
    """Raise if a function is there already."""
    if key in functions:
        raise ModelFileError(
            f"{where}: the function {key[1]!r} is defined twice, and readers do not agree which "
            "one counts. Save the model again."
        )


def _body(owners: Iterable[Message], number: int) -> Body:
    """The nodes in a field of some messages."""
    return Body.of(k for owner in owners for k in _operators(owner.messages(number), 0))


_DATA_FIELDS = {
    9: "raw_data", 4: "float_data", 5: "int32_data", 6: "string_data", 7: "int64_data",
    10: "double_data", 11: "uint64_data",
}  # fmt: skip


def _operators(nodes: Iterable[Message], depth: int) -> Iterator[Key]:
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    for node in nodes:
        yield key_of(node.string(7), node.string(4), node.string(8))
        for attribute in node.messages(5):
            for graph in attribute.messages(6) + attribute.messages(11):
                yield from _operators(graph.messages(1), depth + 1)
