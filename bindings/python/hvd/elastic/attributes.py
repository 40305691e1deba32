"""States whose attributes are what must survive: values, and arrays in the program's own memory."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable

from ..codec import CodecLike
from ..context import Context
from ..errors import InvalidError
from .sampler import ElasticSampler
from .state import State


class ObjectState(State):
    """Python values as attributes: ObjectState(epoch=0, batch=0). Each travels by the codec, and only if it
    differs.

    Only attributes that are given here are kept.
    """

    def __init__(self, bcast_object: Callable[..., Any] | None = None,
                 get_rank: Callable[[], int] | None = None, *, codec: CodecLike | None = None,
                 context: Context | None = None, **values: Any):
        super().__init__(bcast_object, get_rank, context=context)
        object.__setattr__(self, "_codec", codec)
        object.__setattr__(self, "_fixed", set())
        for name, value in values.items():
            self._add(name, value)
        self._keep_initial()

    _codec: CodecLike | None
    _fixed: set[str] = set()

    if TYPE_CHECKING:  # what it is given

        def __getattr__(self, name: str) -> Any: ...

    def _add(self, name: str, value: Any) -> None:
        self._check_name(name)
        if isinstance(value, ElasticSampler):
            self.add_sampler(name, value)
            self._fix(name, value)
            return
        object.__setattr__(self, name, value)
        mine = weakref.ref(self)  # what is registered must not keep the state, or it would never go
        self.add_object(name, lambda: getattr(mine(), name),
                        lambda new: object.__setattr__(mine(), name, new), self._codec)

    @staticmethod
    def _check_name(name: str) -> None:
        if hasattr(State, name) or name.startswith("_"):
            raise InvalidError(f"{name!r} can't be an attribute of a state: a method or an inner name has it")

    def _fix(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        self._fixed.add(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and value is not getattr(self, name):
            raise AttributeError(
                f"{name!r} is registered by its memory: change it in place (state.{name}[...] = value)")
        object.__setattr__(self, name, value)


def _is_array(value: Any) -> bool:
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return False
    if type(value).__module__.split(".")[0] == "numpy" and not hasattr(value, "flags"):
        return False
    if type(value).__module__ == "numpy" and type(value).__name__ != "ndarray":
        return False  # a NumPy number is a value
    if hasattr(type(value), "__dlpack__"):
        return True
    try:
        memoryview(value).release()
        return True
    except TypeError:
        return False


class ArrayState(ObjectState):
    """Arrays and values: ArrayState(weights=w, layers=[a, b], step=0).

    Arrays (NumPy, PyTorch, DLPack, writable buffers), and lists, tuples and dictionaries of nothing but
    arrays, are kept in place: assign to their elements, never to the attribute. Anything else is a value as
    in ObjectState.
    """

    def _add(self, name: str, value: Any) -> None:
        if _is_array(value):
            self.add_array(name, value)
        elif isinstance(value, (list, tuple)) and value and all(map(_is_array, value)):
            for index, array in enumerate(value):
                self.add_array(f"{name}.{index}", array)
        elif isinstance(value, dict) and value and all(map(_is_array, value.values())):
            for key, array in value.items():
                self.add_array(f"{name}.{key}", array)
        else:
            super()._add(name, value)
            return
        self._check_name(name)
        self._fix(name, value)
