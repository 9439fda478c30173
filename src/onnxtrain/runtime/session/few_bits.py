"""Products with weights of four bits through onnxruntime's own kernel, where it has one.

An artifact has standard operators only: a weight becomes floats by a DequantizeLinear, which
onnxruntime runs on one thread, and a product reads them. Its MatMulNBits makes the floats inside
the product, on all threads and in the order that the product wants. So a session is given a model
with that operator; the file stays as it is. The numbers are the same to rounding: the arithmetic is
that of float32. A product with the gradient reads the weight the other way round, for which
onnxruntime has no such kernel: it keeps its DequantizeLinear, or has our kernel (`nibbles.py`).

A weight of 3 million numbers and 256 rows, two threads of AVX-512: 8.5 ms instead of 12.0, on one
thread 16.4 instead of 19.6. Tried, and not faster in a whole step: GatherBlockQuantized, which
makes floats on all threads, in the place of the other DequantizeLinears (5.18 s against 5.17).

Our kernel for the floats, and a product, take 1.0 to 1.1 times as long as MatMulNBits with 128 rows
and more, 1.0 to 1.2 with 8 to 32, 1.4 to 1.7 with one (one thread, 1024 × 1024 to 1024 × 4096).

MatMulNBits keeps the weight in its own order beside the file's, four bits again. Where copies are
not wanted (`MANY_CONSTANTS` in devices.py) its product is no faster, and DequantizeLinear stays. A
weight of eight bits is made floats of in a quarter of the time, and the kernel for it is slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelFileError
from ..files.external import EXTERNAL
from ..files.onnxfile import ModelFile, Node
from ..files.outline import Outline
from ..files.wire import Chunk, Message
from .options import PREPACKING, entry_of

FLOAT, UINT8, INT64, UINT4 = 1, 2, 7, 21
MS = "com.microsoft"
LEAST_BLOCK = 16
"""Numbers in a block that MatMulNBits has at least; it is a power of two."""
MOST_BYTES = 1 << 28
"""Bytes of weights inside a model from which on it is left as it is: they would be there twice."""
WAY = frozenset({"DequantizeLinear", "Reshape", "Transpose"})
"""What lies between the constants and the product."""


def with_kernels(outline: Outline, options: Any) -> bytes | None:
    """A model for a session on the processor; None if there is nothing to gain.

    Only one that has weights of four bits is read.

    Args:
        outline: of the model; files that it names have been checked.
        options: of the session that it is for.
    """
    if not outline.mentions(b"DequantizeLinear") or entry_of(options, PREPACKING) == "1":
        return None
    try:
        return _with_kernels(outline.model) if outline.has_constant_of(UINT4) else None
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def _with_kernels(model: bytes) -> bytes | None:
    file = ModelFile(Message.parse(model))
    products = list(_Graph(file).products())
    inside = {
        p.codes.string(8): 0 if _is_external(p.codes) else len(_raw(p.codes)) for p in products
    }
    if not products or sum(inside.values()) > MOST_BYTES:
        return None
    editor = _Editor(file)
    for product in products:
        editor.use_kernel(product)
    return editor.encode()


@dataclass(frozen=True)
class _Product:
    """A product with the transposed of a weight [outputs, inputs] of four bits.

    Attributes:
        node: the MatMul.
        codes, scales, zeros: the constants; no zero points where they are all in the middle.
        outputs, inputs, block: sizes.
    """

    node: Node
    codes: Message
    scales: Message
    zeros: Message | None
    outputs: int
    inputs: int
    block: int


class _Graph:
    """The constants of a model, and what makes what of them."""

    def __init__(self, file: ModelFile) -> None:
        self._constants = {t.string(8): t for t in file.graph.messages(5)}
        has_weights = any(t.integer(2) == UINT4 for t in self._constants.values())
        nodes = [(n, n.op_type) for n in file.nodes if not n.domain] if has_weights else []
        self._makers = {n.outputs[0]: n for n, kind in nodes if kind in WAY and n.outputs}
        self._matmuls = [n for n, kind in nodes if kind == "MatMul" and len(n.inputs) == 2]

    def products(self) -> Iterator[_Product]:
        """Those that MatMulNBits can carry out."""
        for node in self._matmuls:
            turned = self._maker(node.inputs[-1], "Transpose")
            if turned is None or _permutation(turned) not in ([], [1, 0]):
                continue
            shaped = self._maker(turned.inputs[0], "Reshape")
            floats = self._maker(shaped.inputs[0], "DequantizeLinear") if shaped else None
            if shaped is not None and floats is not None and len(floats.inputs) == 3:
                product = self._product(node, shaped, floats)
                if product is not None:
                    yield product

    def _maker(self, name: str, op_type: str) -> Node | None:
        node = self._makers.get(name)
        return node if node is not None and node.op_type == op_type and node.inputs else None

    def _product(self, node: Node, shaped: Node, floats: Node) -> _Product | None:
        codes, zeros = (self._constants.get(floats.inputs[i]) for i in (0, 2))
        # Scales that wait for nothing are of a small weight: it becomes floats when it is loaded
        gate = self._maker(floats.inputs[1], "Reshape")
        scales = None if gate is None else self._constants.get(gate.inputs[0])
        if codes is None or zeros is None or scales is None:
            return None
        sizes = self._sizes(floats, codes, scales, self._integers(shaped.inputs[-1]))
        if sizes is None or not _is_packed(zeros, sizes[0] * sizes[1] // sizes[2]):
            return None
        outputs, inputs, block = sizes
        points = None if _is_middle(zeros) else zeros
        if points is not None and inputs // block % 2:  # a row would begin inside of a byte
            return None
        return _Product(node, codes, scales, points, outputs, inputs, block)

    def _sizes(
        self, floats: Node, codes: Message, scales: Message, target: list[int]
    ) -> tuple[int, int, int] | None:
        """Outputs, inputs and numbers in a block; None if this is no weight with a block a row."""
        rows, block = codes.integers(1) if len(codes.integers(1)) == 2 else (0, 0)
        inputs = target[1] if len(target) == 2 else 0
        fits = (
            floats.integer("axis", 1) == 0
            and not floats.integer("block_size", 0)
            and _is_packed(codes, rows * block)
            and (scales.integer(2), scales.integers(1)) == (FLOAT, [rows])
            and block >= LEAST_BLOCK
            and not block & (block - 1)
            and inputs > 0
            and inputs % block == 0
            and rows % (inputs // block) == 0
            and target[0] in (-1, rows * block // inputs)
        )
        return (rows * block // inputs, inputs, block) if fits else None

    def _integers(self, name: str) -> list[int]:
        """The values of a short constant."""
        tensor = self._constants.get(name)
        if tensor is None or tensor.integer(2) != INT64 or _is_external(tensor):
            return []
        raw = _raw(tensor)
        if not raw:
            return tensor.integers(7)
        values: list[int] = np.frombuffer(raw, "<i8").tolist() if len(raw) == 16 else []
        return values


class _Editor:
    """Writes onnxruntime's operator into a model."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._names = {*file.initializer_names, *(v.name for v in file.inputs)}
        self._names.update(name for node in file.nodes for name in node.outputs)
        self._views: dict[str, str] = {}

    def use_kernel(self, product: _Product) -> None:
        """Let a product be a MatMulNBits."""
        n, block = product.outputs, product.block
        blocks = product.inputs // block
        codes = self._view(product.codes, (n, blocks, block // 2))
        inputs = [product.node.inputs[0], codes, product.scales.string(8)]
        if product.zeros is not None:
            inputs.append(self._view(product.zeros, (n * blocks // 2,)))
        product.node.message.drop(5).drop(7).add(7, MS).replace(4, ["MatMulNBits"])
        product.node.inputs = inputs
        sizes = {"K": product.inputs, "N": n, "bits": 4, "block_size": block, "accuracy_level": 1}
        for name, value in sizes.items():
            product.node.set_attribute(name, value)

    def encode(self) -> bytes:
        """The model, without what nobody reads any more."""
        file = self._file
        if all(entry.string(1) != MS for entry in file.message.messages(8)):
            file.message.add(8, Message().add(1, MS).add(2, 1))
        file.prune()
        return file.encode()

    def _view(self, tensor: Message, shape: tuple[int, ...]) -> str:
        """A constant of bytes, the same ones; one for all products that read it."""
        source = tensor.string(8)
        if source not in self._views:
            name = f"{source}.bytes"
            while name in self._names:
                name += "_"
            self._names.add(name)
            view = Message()
            for size in shape:
                view.add(1, size)
            view.add(2, UINT8).add(8, name)
            view.fields += [field for field in tensor.fields if field[0] not in (1, 2, 8)]
            self._file.graph.add(5, view)
            self._views[source] = name
        return self._views[source]


def _permutation(node: Node) -> list[int]:
    """What a Transpose says; nothing if it turns the axes around."""
    return [i for a in node.message.messages(5) if a.string(1) == "perm" for i in a.integers(8)]


def _is_external(tensor: Message) -> bool:
    return tensor.integer(14) == EXTERNAL


def _raw(tensor: Message) -> Chunk:
    """The bytes that a tensor has in the model."""
    values = (value for number, _, value in tensor.fields if number == 9)
    return next((value for value in values if isinstance(value, bytes | memoryview)), b"")


def _is_packed(tensor: Message, count: int) -> bool:
    """Whether a tensor has the bytes of so many numbers of four bits."""
    if _is_external(tensor):
        entries = {entry.string(1): entry.string(2) for entry in tensor.messages(13)}
        size = entries.get("length", "")
    else:
        size = str(len(_raw(tensor)))
    return tensor.integer(2) == UINT4 and 0 < count == count // 2 * 2 and size == str(count // 2)


def _is_middle(tensor: Message) -> bool:
    """Whether all zero points are 8, what MatMulNBits takes without any."""
    raw = bytes(_raw(tensor))
    return bool(raw) and raw.count(b"\x88") == len(raw)
