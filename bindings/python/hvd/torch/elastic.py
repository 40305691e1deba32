"""hvd.torch.elastic: as horovod.torch.elastic."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..codec import CodecLike
from ..context import Context
from ..errors import InvalidError
from ..elastic import ArrayState, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ..elastic import ElasticSampler as _ElasticSampler
from .functions import in_host_memory, load_optimizer_state, optimizer_state

__all__ = [
    "ArrayState", "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State",
    "TorchState", "run"
]

if TYPE_CHECKING:
    from .groups import Group
    from .sharded import Sharded


class ElasticSampler(_ElasticSampler, torch.utils.data.Sampler):
    __doc__ = _ElasticSampler.__doc__


class TorchState(ObjectState):
    """TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0).

    Parameters and buffers of modules are kept in place: each is committed, restored and synced by itself.
    Optimizers and anything else with state_dict and load_state_dict (schedulers, scalers) go through the
    codec, and so do tensors that are attributes themselves; "json" knows them. ElasticSamplers are handled by
    the library. The rest are values. Any attribute may be replaced; a module or sampler that is new is part
    of the state from then on, and has a commit of its own with the next one.

    hidden_commits=True: commit() returns at once, and what is left of its copy is waited for before the next
    step() of any optimizer that is an attribute, or that Sharded has dealt out. It then raises what commit()
    would have (HostsUpdatedInterrupt). In between nothing else may write parameters, or what an optimizer
    keeps for them. Buffers (batch normalization's), the optimizer's options and all other attributes may
    change, since they are copied at once. A tensor that PyTorch has written meanwhile is an InvalidError,
    which names it: at the step, or at the restore or sync that would have used that commit. Writes to `.data`
    or past PyTorch are found by option check_commits alone.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 *, codec: CodecLike | None = None, context: Context | None = None,
                 hidden_commits: bool = False, **values: Any):
        given: dict[str, Any] = {}
        if model is not None:
            given["model"] = model
        if optimizer is not None:
            given["optimizer"] = optimizer
        object.__setattr__(self, "_keys", {})
        object.__setattr__(self, "_hidden", hidden_commits)
        object.__setattr__(self, "_begun", False)
        object.__setattr__(self, "_hooks", {})
        object.__setattr__(self, "_copied", {})
        object.__setattr__(self, "_versions", [])
        super().__init__(codec=codec, context=context, **given, **values)

    _keys: dict[str, tuple[str, list[str]]]  # by attribute: its kind, and the keys that stand for it
    _hidden: bool
    _begun: bool  # a hidden commit that was not ended
    _hooks: dict[str, Any]  # by attribute: what ends a hidden commit before the optimizer's step

    _copied: dict[str, list[tuple[str, torch.Tensor]]]  # by attribute: what a hidden commit copies later
    _versions: list[tuple[str, torch.Tensor, int]]  # of that, when it was begun

    def commit(self) -> None:
        if not self._hidden or self._overrides("save"):
            super().commit()
            return
        self._end_hidden()
        self.commit_begin()
        copied = [pair for pairs in self._copied.values() for pair in pairs]
        for attribute, (kind, _) in self._keys.items():
            if kind == "sharded":
                copied += getattr(self, attribute)._copied
            elif kind == "optimizer":
                copied += _moments(attribute, getattr(self, attribute))
        versions = [(key, tensor, tensor._version) for key, tensor in copied]
        object.__setattr__(self, "_versions", versions)
        object.__setattr__(self, "_begun", True)

    def _end_hidden(self, *_: Any) -> None:
        if self._begun:
            object.__setattr__(self, "_begun", False)
            self._check_versions()
            try:
                self.commit_end()
            except HostsUpdatedInterrupt:
                # All leave at this commit, and the loop may have gone on since: its counters are put back,
                # too.
                State.restore(self)
                raise

    def _check_versions(self) -> None:
        for key, tensor, version in self._versions:
            if tensor._version != version:
                raise InvalidError(
                    f"{key!r} was written between commit() and the optimizer's step, while it was copied: "
                    "expected that of no parameter with hidden_commits=True")

    def _check_memory(self) -> None:
        super()._check_memory()
        if self._begun:  # a restore or a sync before the step: what was written meanwhile must not come back
            self._check_versions()

    def check_host_updates(self) -> None:
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            if not self._begun:  # else live values are still that commit's
                self._store_parts()
            raise

    def _store_parts(self) -> None:
        parts = [getattr(self, name) for name, (kind, _) in self._keys.items() if kind == "sharded"]
        if parts:
            self._end_hidden()  # it copies what is written now
        for part in parts:
            part._store()

    def _call(self, what: str, function: Any) -> None:
        if what in ("commit", "commit_begin", "save"):
            self._store_parts()
        super()._call(what, function)
        if what not in ("commit_begin", "check_host_updates"):  # it has waited for what was begun
            object.__setattr__(self, "_begun", False)

    def _synced(self) -> None:
        super()._synced()
        object.__setattr__(self, "_begun", False)

    def _hook(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        if name in self._hooks:
            self._hooks.pop(name).remove()
        if not self._hidden:
            return
        mine = weakref.ref(self)

        def before_step(*_: Any) -> None:
            state = mine()
            if state is not None:
                state._end_hidden()

        self._hooks[name] = optimizer.register_step_pre_hook(before_step)

    def _add(self, name: str, value: Any) -> None:
        before = set(self._memory)
        kind = _kind(value)
        mine: Any = weakref.ref(self)  # what is registered must not keep the state, or it would never go
        hidden = self._hidden

        def now() -> Any:
            return getattr(mine(), name)

        if kind == "module":
            self._add_module(name, value)
        elif kind == "optimizer":
            self.add_object(name, lambda: _saved(now()) if hidden else optimizer_state(now()),
                            lambda new: load_optimizer_state(now(), new), self._codec, until_end=hidden)
            self._hook(name, value)
        elif kind == "sharded":
            value._register(self, name, self._context.rank(), self._context.size())
            self.add_object(name, lambda: now()._rest, lambda new: now()._put(new), self._codec,
                            until_end=True)  # copies of its own
        elif kind == "stateful":
            self.add_object(name, lambda: now().state_dict(), lambda new: now().load_state_dict(new),
                            self._codec)
        elif kind == "tensor":
            self.add_object(name, lambda: in_host_memory(now().detach()),
                            lambda new: mine()._put_tensor(name, new), self._codec)
        else:
            super()._add(name, value)
        if kind not in ("value", "sampler"):
            self._check_name(name)
            object.__setattr__(self, name, value)
        self._keys[name] = (kind, [key for key in self._memory if key not in before])

    def _add_module(self, name: str, module: torch.nn.Module) -> None:
        for key, tensor in module.state_dict(keep_vars=True).items():
            if self._hidden and isinstance(tensor,
                                           torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
                self._add_filled(f"{name}.{key}", tensor)
            elif isinstance(tensor, torch.Tensor) and tensor.is_contiguous():
                self.add_array(f"{name}.{key}", tensor)
                if self._hidden and not tensor.is_inference():
                    self._copied.setdefault(name, []).append((f"{name}.{key}", tensor))
            elif isinstance(tensor, torch.Tensor):
                self._add_filled(f"{name}.{key}", tensor)
            else:
                prefix, _, last = key.rpartition(".")
                owner = module.get_submodule(prefix)
                if last == "_extra_state":
                    self.add_object(f"{name}.{key}", owner.get_extra_state, owner.set_extra_state,
                                    self._codec)

    def _add_filled(self, key: str, tensor: torch.Tensor) -> None:
        self.add_object(key, lambda: in_host_memory(tensor.detach()), partial(_fill, tensor), self._codec)

    def set_array(self, key: str, array: Any) -> None:
        super().set_array(key, array)
        for pairs in self._copied.values():  # the next commit reads the new memory
            pairs[:] = [(copied, array if copied == key else tensor) for copied, tensor in pairs
                        if copied != key or isinstance(array, torch.Tensor)]

    def _put_tensor(self, name: str, values: torch.Tensor) -> None:
        """In place if it fits: others may hold the tensor, too."""
        old = getattr(self, name)
        if isinstance(old, torch.Tensor) and (old.shape, old.dtype) == (values.shape, values.dtype):
            _fill(old, values)
        else:
            object.__setattr__(self, name, values.to(old.device) if isinstance(old, torch.Tensor) else values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._keys or value is getattr(self, name):
            object.__setattr__(self, name, value)
            return
        kind, keys = self._keys[name]
        if kind == _kind(value) and kind not in ("module", "sampler", "sharded"):
            object.__setattr__(self, name, value)
            if kind == "optimizer":
                self._hook(name, value)
            return
        old = getattr(self, name)
        try:
            self._replace(name, value, keys)
        except BaseException:
            self._replace(name, old,
                          [key for key in self._memory if key == name or key.startswith(f"{name}.")])
            raise

    def _replace(self, name: str, value: Any, keys: list[str]) -> None:
        for key in keys:
            self.remove(key)
        self._fixed.discard(name)
        self._copied.pop(name, None)
        self._add(name, value)


def _kind(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        return "module"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, _ElasticSampler):
        return "sampler"
    if _is_sharded(value):
        return "sharded"
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "stateful" if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else "value"


def _is_sharded(value: Any) -> bool:
    module = sys.modules.get(f"{__package__}.sharded")  # who has one has imported it
    return module is not None and isinstance(value, module.Sharded)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


def _moments(name: str, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """What a hidden commit of an optimizer copies later, by key."""
    return [(f"{name}.{key}", tensor) for held in optimizer.state.values() if isinstance(held, dict)
            for key, tensor in held.items() if isinstance(tensor, torch.Tensor) and not tensor.is_inference()]


def _saved(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state, of which nothing changes before its next step. (A scheduler writes the groups'
    numbers, which may be tensors.)"""
    state = optimizer_state(optimizer)
    groups = [{
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
    } for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def __getattr__(name: str) -> Any:
    if name == "Group":  # it and Sharded need a PyTorch with torch.distributed
        from .groups import Group

        return Group
    if name == "Sharded":
        from .sharded import Sharded

        return Sharded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ArrayState", "ElasticSampler", "Group", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState",
    "Sharded", "State", "TorchState", "run"
]
