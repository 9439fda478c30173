"""Trained convolutions in onnxruntime's blocked layout (NCHWc), where its build has one.

onnxruntime's fast convolutions want the channels in blocks of 8 or 16, the block as the last axis.
It lays images out so only for weights that are constant: with weights that change it copies the
windows of each image, group by group, which for a depthwise kernel costs ten times the arithmetic.
Its kernels do not care whether the weights are constant. So a session is given a model in which
images and weights are laid out before a convolution and its result after it; the file stays as it
is, of standard operators. `passes/blocked.py` has marked the nodes. The numbers are the same to
rounding, and do not depend on the number of threads.

Milliseconds on two threads of AVX-512, onnxruntime 1.31.1, as it was and in blocks, layouts
included (images, channels, pixels): 3×3, 16 of 64 on 16×16 1.8 and 1.5; 16 of 128 on 8×8 7.5 and
1.6; 4 of 32 on 64×64 2.0 and 1.5; the first layer of ResNet-18 2.05 and 1.5; depthwise 3×3, 8 of 96
on 48×48 1.5 and 0.46; 8 of 384 on 6×6 0.47 and 0.06; depthwise 7×7, 8 of 192 on 14×14 2.5 and 0.23.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import ModelFileError
from ...operators import BLOCKED, OPERAND
from ..files.outline import INPUT, OUTPUT, Node, Outline
from ..files.wire import Message, varint
from ..fusion.operators import DEPTHWISE_WEIGHTS
from .edits import (
    LONGEST,
    NOTHING,
    Rewritten,
    changed,
    connections_of,
    field,
    idle_after,
    marked,
    tag,
)
from .native import try_out
from .own_nodes import Node as OwnNode
from .own_nodes import if_sound

INPUT_TAG, OUTPUT_TAG = tag(INPUT), tag(OUTPUT)
NCHWC = "com.microsoft.nchwc"
EVEN = 4
"""onnxruntime lays out multiples of so many channels."""
FLOAT, INT64 = 1, 7
INTEGER, GRAPH, INTEGERS = 2, 5, 7
"""Kinds of attributes."""
GROUP = tag(1) + b"\x05group"
"""How an attribute begins that says how many groups there are."""


SIZES = {"convolution": 5, "image": 0, "signal": 0, "weights": 14}
"""How many numbers a mark has, by what it is of."""
CHUNK = 8
"""Images whose depthwise weights' gradients are one convolution where the batch size is open."""


class Convolution(NamedTuple):
    """What a marked Conv says of itself: filters, channels per group, kernel, groups."""

    filters: int
    channels: int
    height: int
    width: int
    group: int

    def suits(self, block: int) -> bool:
        """Whether onnxruntime has the kernel, and is faster with it.

        With blocks of sixteen, 2 to 64 images: four filters take as long as they are, of 3 channels
        on 10×10 and of 4 on 32×32; so do eight and twelve of 1 or 3 channels on 10×10 and 32×32.
        Eight of 8 channels take 0.85 to 0.95 of their time, depthwise four half of it.
        """
        if self.is_depthwise:
            return self.group % EVEN == 0
        if self.group > 1:
            return self.channels % block == 0 and self.filters // self.group % block == 0
        is_even = self.channels < block or self.channels % EVEN == 0
        least = block if self.channels < EVEN else block // 2
        return self.filters % EVEN == 0 and self.filters >= least and is_even

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is by itself."""
        return self.channels == 1 and self.filters == self.group > 1


class WeightGradient(NamedTuple):
    """What the last node of the gradient of some weights says of itself, see `blocked_part`."""

    filters: int
    channels: int
    group: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    images: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> WeightGradient:
        """From the numbers of a mark."""
        filters, channels, group, *axes, images = sizes
        kernel, strides, dilations, before, behind = zip(axes[:5], axes[5:])
        pads = (*before, *behind)
        return cls(filters, channels, group, kernel, strides, dilations, pads, images)


@functools.cache
def block_size() -> int:
    """How many channels this build puts side by side on this processor; 0 if it does not."""
    node = _node("ReorderInput", ["x"], ["y"], channels_last=0)
    graph = Message().add(1, node).add(2, "blocks")
    graph.add(11, _value("x", [1, EVEN, 1, 1])).add(12, _value("y", None))
    model = Message().add(1, 8).add(7, graph)
    for domain, version in (("", 13), (NCHWC, 1)):
        model.add(8, Message().add(1, domain).add(2, version))
    try:
        laid_out = try_out(model.encode(), "y", {"x": np.zeros((1, EVEN, 1, 1), np.float32)})
    except Exception:  # a build without these kernels; its errors have no common base class
        return 0
    size = int(laid_out.shape[1])
    return size if size > EVEN else 0


def in_blocks(outline: Outline) -> bytes | None:
    """The model with its marked convolutions in blocks; None if there is nothing to do."""
    blocks = blocked_nodes(outline)
    try:
        return changed(
            outline, blocks.changes, *blocks.domains, constants=blocks.constants
        ) if blocks.changes else None  # fmt: skip
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def blocked_nodes(outline: Outline, *, kernels: bool = False) -> Rewritten:
    """What stands in the places of marked convolutions, and of those that nobody reads then.

    Args:
        outline: of the model.
        kernels: whether nodes of ours may be among them.
    """
    if not may_have_blocks(outline):
        return NOTHING
    try:
        return _Editor(outline, block_size(), kernels=kernels).rewritten()
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return NOTHING


def may_have_blocks(outline: Outline) -> bool:
    """Whether a model has marks, and this build of onnxruntime what they are for."""
    is_marked = len(outline.model) <= LONGEST and outline.mentions(BLOCKED.encode())
    return is_marked and block_size() > 0


class _Editor:
    """Writes onnxruntime's operators into a model."""

    def __init__(self, outline: Outline, block: int, *, kernels: bool) -> None:
        self._outline, self._block, self._has_kernels = outline, block, kernels
        self._prefix, self._names = "blocked", 0
        while outline.model.find(self._prefix.encode() + b"/") >= 0:
            self._prefix += "_"
        self._nodes: list[bytes] = []
        self._read = set[str]()
        self._constants: dict[tuple[int, ...], str] = {}
        self._laid_out: dict[str, str] = {}
        self._images: dict[str, list[str]] = {}
        self._signals: dict[str, list[str]] = {}

    def rewritten(self) -> Rewritten:
        """All that changes, what nobody reads any more included."""
        marks = [(node, *_mark(node)) for node in marked(self._outline, BLOCKED)]
        for node, role, _, key in marks:
            if role in ("image", "signal"):
                part_of, _, operand = key.partition(OPERAND)
                sources = self._images if role == "image" else self._signals
                if operand == node.inputs[0].decode():
                    sources.setdefault(part_of, []).append(operand)
        changes = dict[int, list[bytes]]()
        for node, role, sizes, key in marks:
            if (role == "convolution" and self._convolution(node, Convolution(*sizes))) or (
                role == "weights" and self._weights(node, WeightGradient.of(sizes), key)
            ):
                changes[node.place], self._nodes = self._nodes, []
        if not changes:
            return NOTHING
        read, connections = {name.encode() for name in self._read}, connections_of(self._outline)
        idle = idle_after(self._outline, changes, read, connections)
        constants = [_integers(name, values) for values, name in self._constants.items()]
        changes |= {place: [] for place in idle}
        return Rewritten(changes, constants, [NCHWC.encode()], read, connections)

    # --- convolutions ------------------------------------------------------------------------

    def _convolution(self, node: Node, sizes: Convolution) -> bool:
        """Write a Conv in blocks; False if onnxruntime has no kernel for it."""
        if not sizes.suits(self._block) or node.operator != b"Conv":
            return False
        image, weights, *bias = (name.decode() for name in node.inputs)
        filters = self._padded(sizes.filters)
        group = filters if sizes.is_depthwise else sizes.group
        is_flat = sizes.group == 1 and sizes.channels < self._block
        inputs = [image if is_flat else self._image(image), self._filters(weights, sizes)]
        if bias and bias[0]:
            inputs.append(self._pad(bias[0], [0, filters - sizes.filters]))
        others = [attribute for attribute in node.attributes if not attribute.startswith(GROUP)]
        blocks = self._emit("Conv", inputs, NCHWC, others, group=group)
        self._reorder_output(blocks, node.outputs[0].decode(), sizes.filters)
        return True

    def _image(self, name: str) -> str:
        """An image in blocks, laid out once for all that read it at about the same time."""
        if name not in self._laid_out:
            self._laid_out[name] = self._reorder(name)
        return self._laid_out[name]

    def _filters(self, name: str, sizes: Convolution) -> str:
        """Weights as the kernel reads them: blocks of filters last, blocks of channels before."""
        kernel, filters = sizes.height * sizes.width, self._padded(sizes.filters)
        if sizes.channels < self._block:  # a first layer, or depthwise: channels as they are
            flat = self._reshape(name, [1, sizes.filters, sizes.channels, kernel])
            shape = [filters, sizes.channels, sizes.height, sizes.width]
            return self._reshape(self._reorder(flat), shape)
        channels = self._padded(sizes.channels)
        name = self._pad(name, [0, 0, 0, 0, 0, channels - sizes.channels, 0, 0])
        by_filter = self._reorder(self._reshape(name, [1, sizes.filters, channels, kernel]))
        block = self._block
        parts = self._reshape(
            by_filter, [filters // block, channels // block, block, kernel, block]
        )
        turned = self._emit("Transpose", [parts], perm=[0, 1, 3, 2, 4])
        return self._reshape(turned, [filters, channels, sizes.height, sizes.width])

    # --- gradients of weights ----------------------------------------------------------------

    def _weights(self, node: Node, sizes: WeightGradient, key: str) -> bool:
        """Write the gradient of weights as a convolution of the image with the signal."""
        images, signals = self._images.get(key, []), self._signals.get(key, [])
        if len(images) != 1 or len(signals) != 1 or sizes.filters % EVEN:
            return False
        result = node.outputs[0].decode()
        if sizes.group > 1 and self._by_kernel(images[0], signals[0], result, sizes):
            return True
        signal = self._image(signals[0])
        if sizes.group > 1:
            self._of_channels(self._reorder(images[0]), signal, result, sizes)
        else:
            top, left, bottom, right = sizes.pads
            padded = self._pad(images[0], [0, 0, top, left, 0, 0, bottom, right])
            self._of_filters(padded, signal, result, sizes._replace(pads=(0, 0, 0, 0)))
        return True

    def _of_filters(self, image: str, signal: str, result: str, sizes: WeightGradient) -> None:
        """Image by image: its channels are images, the channels of the signal are filters.

        The image has its padding: onnxruntime computes what touches a border pixel by pixel.
        """
        filters = self._padded(sizes.filters)
        shape = self._integers([sizes.channels, filters, *sizes.kernel])
        nothing = self._emit("ConstantOfShape", [shape])
        names = total, rows, kernels = [self._fresh() for _ in range(3)]
        with self._inside() as inner:
            one = self._integers([1])
            channels, planes = (self._emit("Unsqueeze", [v, one]) for v in (rows, kernels))
            more = self._emit("Add", [total, self._convolved(channels, planes, sizes, 1)])
        body = _graph(inner, names, more, [sizes.channels, filters, *sizes.kernel])
        blocks = self._emit("Scan", [nothing, image, signal], num_scan_inputs=2, body=body)
        by_channel = self._fresh()
        self._reorder_output(blocks, by_channel, sizes.filters)
        self._write("Transpose", [by_channel], result, perm=[1, 0, 2, 3])

    def _of_channels(self, image: str, signal: str, result: str, sizes: WeightGradient) -> None:
        """Depthwise: a kernel for every image and channel, so that images are more channels.

        If their number is open, that is done image by image, or `CHUNK` of them at a time.
        """
        channels = self._padded(sizes.filters)
        if sizes.images:
            together = sizes.images * channels
            rows = self._reshape(image, [-1, together, 0, 0])
            kernels = self._reshape(signal, [together, -1, 0, 0])
            by_image = self._convolved(rows, kernels, sizes, together)
        else:
            by_image = self._in_turns(image, signal, sizes)
        by_image = self._reshape(by_image, [-1, channels, *sizes.kernel])
        total = self._emit("ReduceSum", [by_image, self._integers([0])], keepdims=1)
        by_channel = self._fresh()
        self._reorder_output(total, by_channel, sizes.filters)
        shape = self._integers([sizes.filters, 1, *sizes.kernel])
        self._write("Reshape", [by_channel, shape], result)

    def _by_kernel(self, image: str, signal: str, result: str, sizes: WeightGradient) -> bool:
        """Write a node of ours for depthwise weights; False if there is none for these.

        It is for channels that would leave half of a block empty. With blocks of sixteen a step
        with 8 channels on 4×4 to 64×64 takes 0.6 to 1.0 of its time (1 to 32 images, kernels of 3×3
        and 5×5, one thread; 1.05 for 32 images of 4×4 with 5×5), and the session has one node
        instead of 22 where the batch is open; a step with 16 channels takes 0.8 to 1.5 times as
        long, with 32 channels 0.9 to 1.8.
        """
        if not self._has_kernels or sizes.strides != (1, 1) or 2 * sizes.filters > self._block:
            return False
        axes = zip(sizes.kernel, sizes.dilations, sizes.pads[:2], sizes.pads[2:], strict=True)
        numbers = tuple(number for axis in axes for number in axis)
        node = if_sound(OwnNode(DEPTHWISE_WEIGHTS, (image, signal), (result,), numbers))
        if node is None:
            return False
        self._read.update(node.inputs)
        self._nodes.append(node.encode())
        return True

    def _in_turns(self, image: str, signal: str, sizes: WeightGradient) -> str:
        """Turn after turn, of `CHUNK` images where their number is a multiple of it."""
        shape = self._emit("Shape", [image])
        count = self._emit("Gather", [shape, self._integers([0])], axis=0)
        rest = self._emit("Mod", [count, self._integers([CHUNK])])
        is_even = self._emit("Equal", [rest, self._integers([0])])
        chunks, single = (self._turns_of(turn, image, signal, sizes) for turn in (CHUNK, 1))
        return self._emit("If", [is_even], then_branch=chunks, else_branch=single)

    def _turns_of(self, turn: int, image: str, signal: str, sizes: WeightGradient) -> bytes:
        """A branch that scans the images, so many in each turn."""
        channels = turn * self._padded(sizes.filters)
        names = rows, kernels = self._fresh(), self._fresh()
        with self._inside() as inner:
            plane = self._emit("Unsqueeze", [rows, self._integers([0])])
            kernel = self._emit("Unsqueeze", [kernels, self._integers([1])])
            convolved = self._convolved(plane, kernel, sizes, channels)
        body = _graph(inner, names, convolved, [1, channels, *sizes.kernel])
        with self._inside() as outer:
            by_turn = [self._reshape(v, [-1, channels, 0, 0]) for v in (image, signal)]
            result = self._emit("Scan", by_turn, num_scan_inputs=2, body=body)
        return _graph(outer, [], result, None)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[list[bytes]]:
        """Nodes that are written meanwhile are those of an inner graph."""
        around, self._nodes = self._nodes, []
        yield self._nodes
        self._nodes = around

    def _convolved(self, image: str, kernels: str, sizes: WeightGradient, group: int) -> str:
        """The image with the signal as its kernel: strides and dilations change places."""
        return self._emit(
            "Conv", [image, kernels], NCHWC,
            group=group, pads=sizes.pads, strides=sizes.dilations, dilations=sizes.strides,
        )  # fmt: skip

    # --- single nodes ------------------------------------------------------------------------

    def _padded(self, channels: int) -> int:
        """The next multiple of a block."""
        return -(-channels // self._block) * self._block

    def _reorder(self, name: str) -> str:
        return self._emit("ReorderInput", [name], NCHWC, channels_last=0)

    def _reorder_output(self, blocks: str, name: str, channels: int) -> None:
        self._write("ReorderOutput", [blocks], name, NCHWC, channels_last=0, channels=channels)

    def _reshape(self, name: str, shape: Sequence[int]) -> str:
        return self._emit("Reshape", [name, self._integers(shape)])

    def _pad(self, name: str, pads: Sequence[int]) -> str:
        """With zeros behind; as it is where there is nothing to add."""
        return self._emit("Pad", [name, self._integers(pads)]) if any(pads) else name

    def _emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        domain: str = "",
        others: Sequence[bytes] = (),
        **attributes: int | Sequence[int] | bytes,
    ) -> str:
        """Append a node, and give the name of its result; `others` are attributes, too."""
        result = self._fresh()
        self._write(op_type, inputs, result, domain, others, **attributes)
        return result

    def _write(
        self,
        op_type: str,
        inputs: Sequence[str],
        result: str,
        domain: str = "",
        others: Sequence[bytes] = (),
        **attributes: int | Sequence[int] | bytes,
    ) -> None:
        """Append a node that makes a value of this name."""
        self._read.update(inputs)
        self._nodes.append(_node(op_type, inputs, [result], domain, others, **attributes))

    def _fresh(self) -> str:
        """A name that nobody has."""
        self._names += 1
        return f"{self._prefix}/{self._names}"

    def _integers(self, values: Sequence[int]) -> str:
        """A constant; one for all that read it."""
        key = tuple(values)
        if key not in self._constants:
            self._constants[key] = self._fresh()
        return self._constants[key]


def _mark(node: Node) -> tuple[str, list[int], str]:
    """Role, sizes and key of a node."""
    role, *words = node.mark[len(BLOCKED) :].decode().split()
    count = SIZES[role]
    sizes = [int(word) for word in words[:count]]
    if len(sizes) < count or min(sizes, default=0) < 0:
        raise ValueError(f"{node.mark!r} is no mark")
    return role, sizes, " ".join(words[count:])


def _integers(name: str, values: Sequence[int]) -> bytes:
    """A constant of the graph."""
    content = struct.pack(f"<{len(values)}q", *values)
    return _vector(len(values)) + _named(tag(8), name) + field(9, content)


@functools.lru_cache(maxsize=64)
def _vector(length: int) -> bytes:
    """What a constant says of its shape and type."""
    return Message().add(1, length).add(2, INT64).encode()


def _node(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str = NCHWC,
    others: Sequence[bytes] = (),
    **attributes: int | Sequence[int] | bytes,
) -> bytes:
    """A node in bytes; a `Message` of each would take as long as all else that is done here."""
    parts = [_named(INPUT_TAG, name) for name in inputs]
    parts += [_named(OUTPUT_TAG, name) for name in outputs]
    parts.append(_kind(op_type, domain))
    for name, value in attributes.items():
        parts.append(_attribute(name, value if isinstance(value, int | bytes) else tuple(value)))
    parts += [field(5, attribute) for attribute in others]
    return b"".join(parts)


def _named(head: bytes, name: str) -> bytes:
    content = name.encode()
    return head + varint(len(content)) + content


@functools.lru_cache(maxsize=64)
def _kind(op_type: str, domain: str) -> bytes:
    """What a node says of its operator."""
    return field(4, op_type.encode()) + (field(7, domain.encode()) if domain else b"")


@functools.lru_cache(maxsize=1024)
def _attribute(name: str, value: int | tuple[int, ...] | bytes) -> bytes:
    """An attribute of a node, of which bytes are a graph; networks have the same ones often."""
    attribute = Message().add(1, name)
    if isinstance(value, int):
        attribute.add(3, value).add(20, INTEGER)
    elif isinstance(value, bytes):
        attribute.add(6, value).add(20, GRAPH)
    else:
        for item in value:
            attribute.add(8, item)
        attribute.add(20, INTEGERS)
    return field(5, attribute.encode())


def _graph(
    nodes: Sequence[bytes], inputs: Sequence[str], output: str, shape: Sequence[int] | None
) -> bytes:
    """A graph of floats, with the shape of its result."""
    parts = [field(1, node) for node in nodes]
    parts.append(field(2, b"blocked"))
    parts += [field(11, _value(name, None)) for name in inputs]
    return b"".join([*parts, field(12, _value(output, shape))])


def _value(name: str, shape: Sequence[int] | None) -> bytes:
    """A float tensor of a graph; without a shape if that is not known."""
    return field(1, name.encode()) + _type(None if shape is None else tuple(shape))


@functools.lru_cache(maxsize=1024)
def _type(shape: tuple[int, ...] | None) -> bytes:
    """What a graph says of a tensor beside its name."""
    tensor = Message().add(1, FLOAT)
    if shape is not None:
        dims = Message()
        for size in shape:
            dims.add(1, Message().add(1, size))
        tensor.add(2, dims)
    return Message().add(2, Message().add(1, tensor)).encode()
