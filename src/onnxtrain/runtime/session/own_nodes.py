"""Nodes of our own operators, as they stand in a model."""

from __future__ import annotations

from typing import NamedTuple

from ..files.wire import Message
from ..fusion.operators import Operator
from ..fusion.program import ProgramError


class Node(NamedTuple):
    """A node of ours."""

    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """As it stands in a model."""
        message = Message()
        for name in self.inputs:
            message.add(1, name)
        for name in self.outputs:
            message.add(2, name)
        text = " ".join(map(str, self.numbers))
        numbers = Message().add(1, "numbers").add(4, text).add(20, 3)
        message.add(4, self.operator.name).add(5, numbers)
        return message.add(7, self.operator.domain).encode()


def if_sound(node: Node) -> Node | None:
    """None for attributes that the kernel would refuse."""
    try:
        node.operator.parse(" ".join(map(str, node.numbers)))
    except ProgramError:
        return None
    return node
