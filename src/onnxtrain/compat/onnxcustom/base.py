"""What learning objects share: choice by name, pickling, and a look at their graphs."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from ...errors import OnnxTrainError
from ...runtime.session.devices import create_session, session_options
from ...runtime.session.sharing import Lock, Refusal, keep_from_parent, note

Array = npt.NDArray[Any]
T = TypeVar("T")


class SelectionError(OnnxTrainError, ValueError):
    """A name of a loss, penalty or learning rate that does not exist."""


def select_class(kind: str, name: str, classes: dict[type[T], tuple[str, ...]]) -> type[T]:
    """The class with this alias, or of this name."""
    for cls, aliases in classes.items():
        if name == cls.__name__ or name in aliases:
            return cls
    known = [n for cls, aliases in classes.items() for n in (*aliases, cls.__name__) if n]
    raise SelectionError(f"There is no {kind} {name!r}. Known: {', '.join(known)}.")


def small_session(model: onnx.ModelProto, providers: Any = None) -> onnxruntime.InferenceSession:
    """A session for a graph of a few nodes: one thread, since handing work over costs more."""
    return create_session(model.SerializeToString(), session_options(threads=1), providers)


class Locked:
    """Has a lock that `exclusive` methods hold; it is neither a parameter nor pickled."""

    @property
    def _lock(self) -> Lock:
        lock: Lock | None = self.__dict__.get("_mutex")
        if lock is None:
            lock = self.__dict__.setdefault("_mutex", threading.RLock())
            note(self)
        return lock

    def after_fork(self) -> None:
        """Refuse to work in a forked process."""
        keep_from_parent(dict(self.__dict__))
        self.__dict__["_mutex"] = Refusal(
            f"This {type(self).__name__} was made before the process was forked, and the threads "
            "of its onnxruntime sessions have stayed behind. Pickle it there and load it here."
        )


class BaseOnnx(Locked):
    """Graphs and sessions in attributes; pickled without the sessions, which are made again.

    A subclass names the attributes that cannot be pickled in `_transient`; they are None after
    loading and made when first needed.
    """

    _transient: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_mutex", None)
        for name in self._transient:
            if name in state:
                state[name] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def onnx_graphs(self) -> dict[str, Any]:
        """Graphs by the name of their attribute; nested where an attribute has several."""
        graphs: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, onnx.ModelProto):
                graphs[name] = value
            elif isinstance(value, BaseOnnx):
                inner = value.onnx_graphs()
                if inner:
                    graphs[name] = inner
        return graphs

    def save_onnx_graph(
        self, folder: str | os.PathLike[str] | type[bytes], prefix: str = "", suffix: str = ""
    ) -> dict[str, Any]:
        """Write every graph that is used to a file.

        Args:
            folder: where to write; ``bytes`` gives the serialized graphs instead of files.
            prefix: beginning of the file names.
            suffix: added to the names, before the extension.

        Returns:
            Attribute → file name (or bytes), nested like the objects.
        """
        return _saved(self.onnx_graphs(), folder, prefix or type(self).__name__, suffix)


def _saved(graphs: dict[str, Any], folder: Any, prefix: str, suffix: str) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    for name, value in graphs.items():
        if isinstance(value, dict):
            saved[name] = _saved(value, folder, f"{prefix}.{name.strip('_')}", suffix)
        elif folder is bytes:
            saved[name] = value.SerializeToString()
        else:
            path = Path(folder) / f"{prefix}.{name.strip('_')}{suffix}.onnx"
            if not path.parent.is_dir():
                raise FileNotFoundError(f"The folder {str(path.parent)!r} does not exist.")
            onnx.save(value, str(path))
            saved[name] = str(path)
    return saved


def arguments_of(obj: Any) -> dict[str, Any]:
    """The constructor arguments of an object that stores them under their names."""
    return {name: getattr(obj, name) for name in inspect.signature(type(obj)).parameters}


def call_text(obj: Any, arguments: Mapping[str, Any]) -> str:
    """How an object is made: its class with all constructor arguments."""
    shown = ", ".join(f"{name}={argument_text(value)}" for name, value in arguments.items())
    return f"{type(obj).__name__}({shown})"


def argument_text(value: Any) -> str:
    """A short text for an argument; a model is told by its size."""
    if isinstance(value, onnx.ModelProto):
        return f"<{value.graph.name or 'model'} with {len(value.graph.node)} nodes>"
    text = repr(value)
    return text if len(text) <= 200 or isinstance(value, BaseOnnx) else f"{text[:197]}..."


class Selected:
    """An attribute that is turned into an object when it is set, so that wrong names fail there.

    Args:
        select: makes the object from a name, or gives back what is one already.
    """

    def __init__(self, select: Callable[[Any], Any]) -> None:
        self._select = select

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = self._select(value)


def save_onnx_graph(
    self: BaseOnnx,
    folder: str | os.PathLike[str] | type[bytes],
    prefix: str = "",
    suffix: str = "",
) -> dict[str, Any]:
    """Write every graph that an object uses; see `BaseOnnx.save_onnx_graph`."""
    return self.save_onnx_graph(folder, prefix, suffix)


def to_array(value: Any) -> Array:
    """An array from an array or an OrtValue of either level."""
    if isinstance(value, np.ndarray):
        return value
    raw = getattr(value, "_ortvalue", value)
    return np.asarray(raw.numpy() if hasattr(raw, "numpy") else raw)
