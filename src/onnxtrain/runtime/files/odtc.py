"""onnxruntime-training's own checkpoint file: FlatBuffers, identifier ``ODTC``, versions 1 and 2.

Stock onnxruntime ships the readers and writers of its tables; this module says what goes where. The
file holds parameters, moments (as ``momentum0``, ``momentum1``), step and properties; it
has no place for the current learning rate, a scheduler or random state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError, ModelFileError
from ...hyper import check_rate
from ..state.buffers import TensorSpec, TensorStore
from ..state.training_state import OptimizerState, TrainingState
from .atomic import write_atomically
from .dtypes import BY_ONNX, MAX_RANK, ElementType, is_shape
from .external import DataFolder, Reference
from .readfile import read_regular

Array = npt.NDArray[Any]
IDENTIFIER = b"ODTC"
VERSION = 2
MOMENTS = ("first_order_moments", "second_order_moments")
EXTERNAL_ABOVE = 1800 * 1024 * 1024
SUPPORTED = {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13}
_TABLES = "ort_flatbuffers_py"


def _table(name: str) -> Any:
    """A generated module; imported here only, since few runs need it.

    They come with onnxruntime, in a package of tools that imports PyTorch where it is installed,
    which takes seconds and a gigabyte: they are imported by themselves, under the name by which
    they know each other.
    """
    if _TABLES not in sys.modules:
        onnxruntime = find_spec("onnxruntime")
        assert onnxruntime is not None
        (root, *_) = onnxruntime.submodule_search_locations or [""]
        folder = Path(root, "tools", "ort_format_model", _TABLES)
        spec = spec_from_file_location(
            _TABLES, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules[_TABLES] = module_from_spec(spec)
    return import_module(f"{_TABLES}.fbs.{name}")


# --- reading --------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> TrainingState:
    """Read a file that onnxruntime-training 1.16 to 1.19 wrote."""
    where = f"Checkpoint {os.fspath(path)!r}"
    data = read_regular(path, CheckpointError)
    try:
        return _Reader(data, Path(path), where).state()
    except (CheckpointError, FileNotFoundError):
        raise
    except Exception as error:  # the generated readers trust every offset in the file
        raise CheckpointError(
            f"{where} is damaged: its FlatBuffers tables cannot be followed ({error!r})."
        ) from None


class _Reader:
    """Reads the tables.

    All that it takes from a file is counted: offsets may all lead to one place, and a file of 4 MB
    would grow to gigabytes, or its lists never end.
    """

    def __init__(self, data: bytes, path: Path, where: str) -> None:
        self.data, self.path, self.where = data, path, where
        self.external: Array | None = None
        self.left = len(data)

    def state(self) -> TrainingState:
        root = _table("Checkpoint").Checkpoint.GetRootAs(self.data, 0)
        if root.Version() not in {1, VERSION}:
            raise CheckpointError(f"{self.where} has version {root.Version()}; 1 and 2 are known.")
        module = root.ModuleState()
        if module is None:
            raise CheckpointError(f"{self.where} is damaged: it has no parameters.")
        if root.Version() == VERSION and module.HasExternalData():
            self.external = self._external()
        trainable = list(self._vector(module.RequiresGradParams, module.RequiresGradParamsLength()))
        frozen = list(self._vector(module.FrozenParams, module.FrozenParamsLength()))
        if root.Version() == VERSION and module.IsNominalState():
            names = self._names(trainable), self._names(frozen)
            state = TrainingState(TensorStore([]), nominal=names)
        else:
            state = TrainingState(self._store(trainable), self._store(frozen))
        groups = list(self._vector(root.OptimizerGroups, root.OptimizerGroupsLength()))
        if groups and not state.is_nominal:
            state.optimizer = self._optimizer(groups, state.trainable)
        self._properties(root.PropertyBag(), state)
        return state

    def _take(self, size: int) -> None:
        """Count bytes of the file as used; together they cannot be more than it has."""
        self.left -= size
        if self.left < 0:
            raise CheckpointError(
                f"{self.where} is damaged: it uses the same bytes for many things. Take another "
                "checkpoint, or load it with onnxruntime-training and save it again."
            )

    def _vector(self, item: Callable[[int], Any], length: int) -> Iterator[Any]:
        self._take(4 * length)  # an entry is an offset
        return (item(i) for i in range(length))

    def _names(self, tensors: Sequence[Any]) -> list[str]:
        names = [self._text(t.Name()) for t in tensors]
        if len(set(names)) != len(names):
            raise CheckpointError(f"{self.where} is damaged: a parameter occurs twice.")
        return names

    def _text(self, value: bytes | None) -> str:
        if value is None:
            raise CheckpointError(f"{self.where} is damaged: a name is missing.")
        self._take(len(value))
        return value.decode()

    def _store(self, tensors: Sequence[Any]) -> TensorStore:
        arrays = {n: self._tensor(n, t) for n, t in zip(self._names(tensors), tensors)}
        store = TensorStore(spec for spec, _ in arrays.values())
        for name, (_, values) in arrays.items():
            store.view(name)[...] = values
        return store

    def _tensor(self, name: str, tensor: Any) -> tuple[TensorSpec, Array]:
        kind = BY_ONNX.get(tensor.DataType())
        if kind is None or kind.onnx not in SUPPORTED:
            raise CheckpointError(
                f"{self.where}: {name!r} has the unknown element type {tensor.DataType()}."
            )
        rank = min(tensor.DimsLength(), MAX_RANK + 1)
        shape = tuple(int(tensor.Dims(i)) for i in range(rank))
        spec = TensorSpec(name, kind, shape)
        if not is_shape(shape):
            raise CheckpointError(f"{self.where} is damaged: {name!r} has shape {shape}.")
        raw = self._raw(name, tensor, spec)
        if raw.nbytes != spec.nbytes:
            raise CheckpointError(
                f"{self.where} is damaged: {name!r} of shape {shape} has {raw.nbytes} bytes."
            )
        return spec, raw.view(kind.numpy).reshape(shape)

    def _raw(self, name: str, tensor: Any, spec: TensorSpec) -> Array:
        offset = tensor.ExternalDataOffset()
        if offset >= 0 and self.external is not None:
            if offset + spec.nbytes > self.external.size:
                raise CheckpointError(f"{self.where}: the data of {name!r} are beyond the file.")
            self._take(spec.nbytes)
            return np.array(self.external[offset : offset + spec.nbytes])
        if tensor.RawDataIsNone():
            raise CheckpointError(f"{self.where} is damaged: {name!r} has no data.")
        self._take(tensor.RawDataLength())
        raw = tensor.RawDataAsNumpy() if tensor.RawDataLength() else np.empty(0, np.uint8)
        return np.array(raw, np.uint8)

    def _external(self) -> Array:
        name = self.path.name + ".data"
        if not os.path.lexists(self.path.with_name(name)):
            raise FileNotFoundError(
                f"{self.where} keeps its data in {name!r} beside it: not found."
            )
        try:
            file = DataFolder(self.path.parent, self.where).locate(Reference("data", name))
        except ModelFileError as error:
            raise CheckpointError(str(error)) from None
        if file.length == 0:
            return np.empty(0, np.uint8)
        self.left += file.length
        return np.memmap(file.path, np.uint8, mode="r")

    def _optimizer(self, groups: Sequence[Any], trainable: TensorStore) -> OptimizerState:
        states = [
            s for g in groups for s in self._vector(g.OptimizerStates, g.OptimizerStatesLength())
        ]
        moments: dict[str, dict[str, tuple[TensorSpec, Array]]] = {}
        for state in states:
            name = self._text(state.ParamName())
            for index, tensor in enumerate(self._vector(state.Momentums, state.MomentumsLength())):
                if index >= len(MOMENTS):
                    raise CheckpointError(f"{self.where}: {name!r} has more than two moments.")
                moments.setdefault(MOMENTS[index], {})[name] = self._tensor(name, tensor)
        what = f"{self.where} is damaged: the learning rate"
        rate = check_rate(groups[0].InitialLearningRate(), what, CheckpointError)
        optimizer = OptimizerState("", int(groups[0].Step()), rate)
        for kind, tensors in moments.items():
            if set(tensors) != set(trainable):
                raise CheckpointError(
                    f"{self.where}: {kind} do not cover exactly the trainable parameters."
                )
            store = TensorStore(tensors[n][0] for n in trainable)
            for name, (_, values) in tensors.items():
                store.view(name)[...] = values
            optimizer.states[kind] = store
        return optimizer

    def _properties(self, bag: Any, state: TrainingState) -> None:
        if bag is None:
            return
        for kind in ("Ints", "Floats", "Strings"):
            length = getattr(bag, f"{kind}Length")()
            for item in self._vector(getattr(bag, kind), length):
                value = item.Value()
                text = self._text(value) if isinstance(value, bytes) else value
                state.set_property(self._text(item.Name()), text)


# --- writing --------------------------------------------------------------------------------------


def save(
    state: TrainingState,
    path: str | os.PathLike[str],
    include_optimizer_state: bool,
    external_above: int = EXTERNAL_ABOVE,
) -> None:
    """Write version 2; above 1.8 GB the data go to ``<path>.data``, as the original did.

    Each of the two files is written atomically, the pair is not: keep the default format for runs
    that may be killed.
    """
    for store in state.stores():
        bad = [s.name for s in store.specs.values() if s.type.onnx not in SUPPORTED]
        if bad:
            raise CheckpointError(f"This format cannot hold the type of {', '.join(bad[:8])}.")
    total = sum(s.nbytes for store in state.stores()[:2] for s in store.specs.values())
    external = _External() if total >= external_above else None
    writer = _Writer(import_module("flatbuffers").Builder(1024), external)
    root = writer.checkpoint(state, include_optimizer_state)
    writer.builder.Finish(root, file_identifier=IDENTIFIER)
    if external is not None:
        write_atomically(f"{os.fspath(path)}.data", external.chunks)
    write_atomically(path, [bytes(writer.builder.Output())], follow_links=True)


class _External:
    """Collects the content of the data file: values aligned to 4 bytes, 8 for 64-bit types."""

    def __init__(self) -> None:
        self.chunks: list[bytes | memoryview] = []
        self.end = 0

    def add(self, values: Array, kind: ElementType) -> int:
        padding = -self.end % (8 if kind.onnx in {7, 11} else 4)
        self.chunks.append(bytes(padding))
        offset = self.end + padding
        raw = values.reshape(-1).view(np.uint8)
        self.chunks.append(raw.data if raw.size else b"")
        self.end = offset + raw.size
        return offset


class _Writer:
    def __init__(self, builder: Any, external: _External | None) -> None:
        self.builder, self.external = builder, external

    def checkpoint(self, state: TrainingState, include_optimizer_state: bool) -> int:
        module = self._module(state)
        optimizer = state.optimizer if include_optimizer_state else None
        groups = self._offsets([self._group(optimizer)] if optimizer and optimizer.states else [])
        bag = self._properties(state) if state.properties else None
        table = _table("Checkpoint")
        table.Start(self.builder)
        table.AddVersion(self.builder, VERSION)
        table.AddModuleState(self.builder, module)
        table.AddOptimizerGroups(self.builder, groups)
        if bag is not None:
            table.AddPropertyBag(self.builder, bag)
        return int(table.End(self.builder))

    def _module(self, state: TrainingState) -> int:
        trainable, frozen = (
            self._offsets([self._parameter(state, n) for n in sorted(names)])
            for names in state.names()
        )
        table = _table("ModuleState")
        table.Start(self.builder)
        table.AddRequiresGradParams(self.builder, trainable)
        table.AddFrozenParams(self.builder, frozen)
        table.AddIsNominalState(self.builder, state.is_nominal)
        table.AddHasExternalData(self.builder, self.external is not None)
        return int(table.End(self.builder))

    def _parameter(self, state: TrainingState, name: str) -> int:
        if state.is_nominal:
            return self._tensor(name, np.empty(0, np.float32), BY_ONNX[1], (), None)
        store = state.store_of(name)
        spec = store.specs[name]
        return self._tensor(name, store.view(name), spec.type, spec.shape, self.external)

    def _tensor(
        self,
        name: str,
        values: Array,
        kind: ElementType,
        shape: Sequence[int],
        external: _External | None,
    ) -> int:
        builder = self.builder
        text = builder.CreateString(name)
        dims = builder.CreateNumpyVector(np.array(shape, np.int64))
        raw = offset = None
        if external is not None:
            offset = external.add(values, kind)
        else:
            flat = np.ascontiguousarray(values).reshape(-1)
            raw = builder.CreateNumpyVector(flat.view(np.uint8) if flat.size else _NOTHING)
        table = _table("Tensor")
        table.Start(builder)
        table.AddName(builder, text)
        table.AddDims(builder, dims)
        table.AddDataType(builder, kind.onnx)
        if raw is not None:
            table.AddRawData(builder, raw)
        if offset is not None:
            table.AddExternalDataOffset(builder, offset)
        return int(table.End(builder))

    def _group(self, optimizer: OptimizerState) -> int:
        stores = list(optimizer.states.values())
        entries = [self._moments(name, stores) for name in sorted(stores[0])]
        states = self._offsets(entries)
        name = self.builder.CreateString("group0")
        table = _table("OptimizerGroup")
        table.Start(self.builder)
        table.AddGroupName(self.builder, name)
        table.AddStep(self.builder, optimizer.step)
        table.AddInitialLearningRate(self.builder, optimizer.learning_rate)
        table.AddOptimizerStates(self.builder, states)
        return int(table.End(self.builder))

    def _moments(self, name: str, stores: Sequence[TensorStore]) -> int:
        tensors = self._offsets(
            [
                self._tensor(
                    f"momentum{i}", s.view(name), s.specs[name].type, s.specs[name].shape, None
                )
                for i, s in enumerate(stores)
            ]
        )
        text = self.builder.CreateString(name)
        table = _table("ParameterOptimizerState")
        table.Start(self.builder)
        table.AddParamName(self.builder, text)
        table.AddMomentums(self.builder, tensors)
        return int(table.End(self.builder))

    def _properties(self, state: TrainingState) -> int:
        values = sorted(state.properties.items())
        vectors = [
            self._offsets([self._property(kind, n, v) for n, v in values if type(v) is t])
            for kind, t in (("Int", int), ("Float", float), ("String", str))
        ]
        table = _table("PropertyBag")
        table.Start(self.builder)
        table.AddInts(self.builder, vectors[0])
        table.AddFloats(self.builder, vectors[1])
        table.AddStrings(self.builder, vectors[2])
        return int(table.End(self.builder))

    def _property(self, kind: str, name: str, value: int | float | str) -> int:
        stored = self.builder.CreateString(value) if isinstance(value, str) else value
        text = self.builder.CreateString(name)
        table = _table(f"{kind}Property")
        table.Start(self.builder)
        table.AddName(self.builder, text)
        table.AddValue(self.builder, stored)
        return int(table.End(self.builder))

    def _offsets(self, items: Sequence[int]) -> int:
        self.builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return int(self.builder.EndVector())


_NOTHING = np.empty(0, np.uint8)
