"""Options of sessions: ours, or a user's with what he left alone filled in.

What somebody sets, holds; what he leaves alone is what onnxtrain would have chosen, or his step
would be several times slower for having set something else (two sessions whose idle threads spin
take the cores away from each other). Ours are put into a copy of the user's object. onnxruntime has
no copy of its options by itself, but a session tells those that it was made with: a session of a
model without a node is asked for them. What such a copy lacks are libraries of custom operators and
providers that were added to the object; where those are, ours are put into the user's object while
a session is made, and taken out again, of which onnxruntime writes a line to the terminal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import onnxruntime

from .native import read_back
from .sharing import GlobalLock

Session = TypeVar("Session")
Way: TypeAlias = Callable[[Callable[[Any], Session]], Session]
"""Calls what makes a session of options."""

SPINNING = "session.force_spinning_stop"
FOLDER = "session.model_external_initializers_file_folder_path"
ALLOCATORS = "session.use_env_allocators"
PREPACKING = "session.disable_prepacking"
NEUTRAL = {SPINNING: "0", FOLDER: "", ALLOCATORS: "0", PREPACKING: "0"}
"""What onnxruntime takes for our settings where there are none; it cannot forget one."""
BUSY = (SPINNING, "session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
"""Settings that say whether idle threads spin."""

NO_NODE = b"\x08\x08\x42\x02\x10\x0d\x3a\x03\x12\x01g"
"""A model of IR 8 and opset 13, whose graph "g" is empty."""
WHILE_COPYING = {
    "enable_profiling": False,
    "intra_op_num_threads": 1,
    "inter_op_num_threads": 1,
}
"""A session that exists to be asked for its options writes no file and starts no thread."""

_lock = GlobalLock()
_borrowed: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""Settings that an object of the user's has only because it was lent."""


class UserOptions:
    """The options of a user, completed.

    Args:
        options: his; the object looks the same to him before and after.
        attributes: what we would choose, by the name of the attribute.
        entries: the same, by the key of a configuration entry.
    """

    def __init__(
        self, options: Any, attributes: Mapping[str, Any], entries: Mapping[str, str]
    ) -> None:
        attributes = {n: v for n, v in attributes.items() if is_left_alone(options, n)}
        entries = {k: v for k, v in entries.items() if entry_of(options, k) is None}
        if isinstance(options, UserOptions):  # completed by another part already
            attributes, entries = options.ours(attributes, entries)
            options = options.options
        self.options: Any = options
        self._attributes, self._entries = dict(attributes), dict(entries)

    def ours(
        self, attributes: Mapping[str, Any], entries: Mapping[str, str]
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """What is not the user's, and more of it."""
        return {**attributes, **self._attributes}, {**entries, **self._entries}

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__["_attributes"]
        return own[name] if name in own else getattr(self.__dict__["options"], name)

    def get_session_config_entry(self, key: str) -> str:
        """As onnxruntime's: an error if there is none."""
        value = self._entries.get(key, entry_of(self.options, key))
        if value is None:
            raise RuntimeError(f"There is no configuration entry {key!r}.")
        return value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """For the sessions that are made with these options, not in the user's object."""
        self._entries[key] = value

    def ways(self, *, is_foreign: bool) -> list[Way[Session]]:
        """How a session gets these options, as onnxruntime takes them; the first is to be tried.

        Args:
            is_foreign: whether a model has operators that onnxruntime does not bring: their library
                is registered with the user's object, and a copy does not know it.
        """
        copy = None if is_foreign else copy_of(self.options)
        if copy is None:
            return [self._lend]
        return [lambda make: make(self._complete(copy)), self._lend]

    def _complete(self, options: Any) -> Any:
        """Put ours in."""
        for name, value in self._attributes.items():
            setattr(options, name, value)
        for key, value in self._entries.items():
            if entry_of(options, key) != value:
                options.add_session_config_entry(key, value)
        return options

    def _lend(self, make: Callable[[Any], Session]) -> Session:
        """The same with the user's object itself, which has ours only meanwhile."""
        options = self.options
        with _lock:
            attributes = {n: getattr(options, n) for n in self._attributes}
            entries = {k: entry_of(options, k) for k in self._entries}
            try:
                return make(self._complete(options))
            finally:
                for name, value in attributes.items():
                    setattr(options, name, value)
                for key, before in entries.items():
                    if before is None:
                        _borrowed.setdefault(options, set()).add(key)
                    options.add_session_config_entry(
                        key, NEUTRAL.get(key, "") if before is None else before
                    )


def ways_with(options: Any, *, is_foreign: bool = False) -> list[Way[Session]]:
    """How a session gets options, a user's among them; the first is to be tried, see `ways`."""
    if isinstance(options, UserOptions):
        return options.ways(is_foreign=is_foreign)
    return [lambda make: make(options)]


def copy_of(options: Any) -> Any:
    """Options like these in an object of their own; None where that would lack something."""
    has_providers = getattr(options, "has_providers", None)  # from onnxruntime 1.22 on
    if has_providers is not None and has_providers():
        return None
    with _lock:
        attributes = {name: getattr(options, name) for name in WHILE_COPYING}
        try:
            for name, value in WHILE_COPYING.items():
                setattr(options, name, value)
            copy = read_back(options, NO_NODE)
        except Exception:  # e.g. options that say that the file is in onnxruntime's own format
            return None
        finally:
            for name, value in attributes.items():
                setattr(options, name, value)
    for name, value in attributes.items():
        setattr(copy, name, value)
    return copy


def is_left_alone(options: Any, attribute: str) -> bool:
    """Whether an attribute has the value that it has by itself, or no options were given."""
    if options is None:
        return True
    return bool(getattr(options, attribute) == getattr(onnxruntime.SessionOptions(), attribute))


def entry_of(options: Any, key: str) -> str | None:
    """What a user set, None if nothing."""
    try:
        value: str = options.get_session_config_entry(key)
    except RuntimeError:
        return None
    return None if key in _borrowed.get(options, ()) and value == NEUTRAL.get(key, "") else value


def may_spin(options: Any) -> bool:
    """Whether a user leaves it to us what idle threads do."""
    return options is None or all(entry_of(options, key) is None for key in BUSY)


def may_be_exchanged(options: Any) -> bool:
    """Whether a session may give way to another one: not if the user wants a profile of it."""
    return options is None or not options.enable_profiling
