"""hvd.jax.elastic: the run loop, and states whose attributes are trees of JAX's arrays."""

from __future__ import annotations

import ctypes
import json
import weakref
from functools import partial, wraps
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..codec import CodecLike, Loan
from ..context import Context
from ..elastic import ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from ..elastic import run as plain_run
from ..elastic._objects import _Object, _Problem
from ..errors import InvalidError
from .errors import errors, forget_programs

__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "JaxState", "ObjectState", "State",
    "run"
]


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """hvd.elastic.run for functions that call compiled programs: what fails in one is hvd's exception."""

    @plain_run
    def guarded(state: Any, *arguments: Any, **options: Any) -> Any:
        forget_programs()
        with errors():
            return function(state, *arguments, **options)

    return wraps(function)(guarded)


class _Leaf(_Object):
    """An array of a tree: a line that says what it is, and its bytes, read where they are."""

    def __init__(self, problem: _Problem, get: Callable[[], Any], put: Callable[[Any], None]):
        super().__init__(problem, tuple, put)
        self.leaf = get

    def get(self) -> Any:
        """What `put` takes again."""
        return self.leaf()

    def save(self, write: Any, sink: int) -> int:
        def action() -> None:
            leaf = self.get()
            kind = "key" if _is_key(leaf) else "jax" if isinstance(leaf, jax.Array) else "numpy"
            about: dict[str, Any] = {"kind": kind}
            if kind == "key":
                about["impl"] = str(jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            array = np.ascontiguousarray(np.asarray(leaf))
            about.update(dtype=array.dtype.name, shape=np.shape(leaf))
            head = json.dumps(about).encode() + b"\n"
            self.problem.lend(sink, [head, Loan(array.ctypes.data, array.nbytes, array)])

        return self.problem.guard(action)

    def load(self, data: int, size: int) -> int:
        def action() -> None:
            try:
                head, _, raw = (ctypes.string_at(data, size) if size else b"").partition(b"\n")
                about = json.loads(head)
                array = np.frombuffer(bytearray(raw), jnp.dtype(about["dtype"])).reshape(about["shape"])
                if about["kind"] not in ("key", "jax", "numpy"):
                    raise ValueError(f"kind {about['kind']!r}")
                value = array if about["kind"] == "numpy" else jnp.array(array)  # a copy of JAX's own
                if about["kind"] == "key":
                    value = jax.random.wrap_key_data(value, impl=about["impl"])
            except Exception as error:
                raise InvalidError(f"an array of the state is damaged: {error}") from error
            self.put(value)

        return self.problem.guard(action)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_leaf_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


class JaxState(ObjectState):
    """JaxState(params=params, opt_state=opt_state, sampler=sampler, step=0).

    Attributes that are trees with arrays in them (JAX's or NumPy's) are kept leaf by leaf: a sync moves the
    leaves that differ. Assign new trees, of any structure, as functional code does: state.params = params. A
    restore or a sync assigns a tree of new arrays, on the devices of the ones before. Arrays are never
    written into. Other attributes are values as in ObjectState.
    """

    def __init__(self, *, codec: CodecLike | None = None, context: Context | None = None, **values: Any):
        object.__setattr__(self, "_trees", {})
        super().__init__(codec=codec, context=context, **values)

    # By attribute: structure, leaves as they were last seen, keys.
    _trees: dict[str, tuple[Any, list[Any], list[str]]]

    def _add(self, name: str, value: Any) -> None:
        flat, structure = jax.tree_util.tree_flatten_with_path(value)
        if isinstance(value, ElasticSampler) or not any(_is_leaf_array(leaf) for _, leaf in flat):
            super()._add(name, value)
            return
        self._check_name(name)
        if any(isinstance(leaf, jax.core.Tracer) for _, leaf in flat):
            raise InvalidError(
                f"{name!r}: a traced value can't be part of a state: assign what the compiled function returned"
            )
        object.__setattr__(self, name, value)
        keys: list[str] = []
        self._trees[name] = (structure, [leaf for _, leaf in flat], keys)
        mine: Any = weakref.ref(self)
        for index, (path, leaf) in enumerate(flat):
            key = f"{name}{jax.tree_util.keystr(path)}"
            if len(key.encode()) > 255:
                key = f"{name}.leaf{index}"
            self._add_leaf(key, _is_leaf_array(leaf), partial(lambda at: mine()._trees[name][1][at], index),
                           partial(lambda at, new: mine()._put_leaf(name, at, new), index))
            keys.append(key)

    def _add_leaf(self, key: str, is_array: bool, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        if is_array:
            self._add_native(key, _Leaf(self._problem, get, put))
        else:
            self.add_object(key, get, put, self._codec)

    def _put_leaf(self, name: str, index: int, new: Any) -> None:
        structure, leaves, _ = self._trees[name]
        old = leaves[index]
        if isinstance(old, jax.Array) and isinstance(new, jax.Array) and old.sharding != new.sharding:
            new = jax.device_put(new, old.sharding)
        leaves[index] = new
        object.__setattr__(self, name, jax.tree_util.tree_unflatten(structure, leaves))

    def _check_memory(self) -> None:
        """Before each use: the leaves that the attributes have now."""
        super()._check_memory()
        for name, (structure, leaves, _) in self._trees.items():
            now, found = jax.tree_util.tree_flatten(getattr(self, name))
            if found != structure or any(_is_leaf_array(a) != _is_leaf_array(b) for a, b in zip(now, leaves)):
                raise InvalidError(f"{name!r} has another structure than was assigned: assign the whole tree "
                                   f"(state.{name} = tree) where it changes")
            leaves[:] = now

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._trees:
            structure, leaves, keys = self._trees[name]
            now, found = jax.tree_util.tree_flatten(value)
            if any(isinstance(leaf, jax.core.Tracer) for leaf in now):
                raise InvalidError(
                    f"{name!r}: a traced value can't be part of a state: assign what the compiled "
                    "function returned")
            if found != structure or any(_is_leaf_array(a) != _is_leaf_array(b) for a, b in zip(now, leaves)):
                for key in keys:
                    self.remove(key)
                del self._trees[name]
                self._add(name, value)
                return
        super().__setattr__(name, value)


__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "JaxState", "ObjectState", "State",
    "run"
]
