"""Subsets of the ranks, for collectives among them."""

from __future__ import annotations

from ctypes import byref, c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence

from . import _abi
from . import _constants as c
from ._handles import Native
from .errors import InvalidError

if TYPE_CHECKING:
    from .context import Context

_lib = _abi.lib
RULES = {
    "workers": c.SET_RULE_WORKERS, "ranks": c.SET_RULE_RANKS, "local": c.SET_RULE_LOCAL,
    "cross": c.SET_RULE_CROSS, "end": c.SET_RULE_END
}


@dataclass(frozen=True)
class ProcessSetInfo:
    """This worker's place among the members; rank -1 if it is none."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    generation: int


class ProcessSet:
    """Ranks of the present generation, or all of this host (rule "local") or with this local rank ("cross").

    Every member makes the same set, with the same name, and adds it to its context (hvd.add_process_set, or
    process_sets= of hvd.init). `rule` says who is in it when ranks have changed: "workers" (the same
    workers), "ranks" (the same numbers), "local", "cross", "end" (nobody: it is over).
    """

    def __init__(self, ranks: Sequence[int] | None = None, *, name: str | None = None, rule: str = "workers"):
        if rule not in RULES:
            raise InvalidError(f"rule {rule!r}: expected one of {', '.join(RULES)}")
        if (ranks is None) != (rule in ("local", "cross")):
            raise InvalidError(f"rule {rule!r} {'takes no' if ranks is not None else 'needs'} ranks")
        self._given = None if ranks is None else [_abi.integer(rank, 32, "ranks") for rank in ranks]
        self._rule = rule
        self.name = name or (rule
                             if ranks is None else f"set {','.join(map(str, sorted(self._given or [])))}")
        self._handle: Native | None = None
        self.process_set_id: int | None = None  # a number in its context, as in Horovod; None: not added

    def _same(self, other: ProcessSet) -> bool:
        ranks = [None if s._given is None else sorted(s._given) for s in (self, other)]
        return self.name == other.name and self._rule == other._rule and ranks[0] == ranks[1]

    def _bind(self, context: Context) -> None:
        if self._handle is not None and not self._handle.closed:
            raise InvalidError(f"process set {self.name!r} has been added to a context already")
        pointer = c_void_p()
        ranks = None if self._given is None else (c_int32 * len(self._given))(*self._given)
        _abi.check(_lib.hvd_process_set_create, context._handle.pointer, _abi.text(self.name, "name"), ranks,
                   len(self._given or []), RULES[self._rule], byref(pointer))
        self._handle = Native(pointer.value, _lib.hvd_process_set_destroy)

    def _pointer(self) -> int:
        if self._handle is None:
            raise InvalidError(f"process set {self.name!r} has not been added to a context (add_process_set)")
        return self._handle.pointer

    def remove(self) -> None:
        """Frees it; operations under way go on."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            self.process_set_id = None

    def info(self) -> ProcessSetInfo:
        raw = _abi.ProcessSetInformation()
        _abi.check(_lib.hvd_process_set_get_info, self._pointer(), byref(raw))
        return ProcessSetInfo(raw.rank, raw.size, raw.local_rank, raw.local_size, raw.cross_rank,
                              raw.cross_size, raw.generation)

    def rank(self) -> int:
        return self.info().rank

    def size(self) -> int:
        return self.info().size

    def included(self) -> bool:
        """Whether this worker is a member."""
        return self.info().rank >= 0

    @property
    def ranks(self) -> list[int]:
        """The members in the present generation, ascending; before it is added those that were given."""
        if self._handle is None and self._given is not None:
            return sorted(self._given)
        count = c_size_t()
        _abi.check(_lib.hvd_process_set_get_ranks, self._pointer(), None, byref(count))
        ranks = (c_int32 * count.value)()
        _abi.check(_lib.hvd_process_set_get_ranks, self._pointer(), ranks, byref(count))
        return list(ranks[: count.value])

    def __repr__(self) -> str:
        return f"hvd.ProcessSet(name={self.name!r}, rule={self._rule!r}, ranks={self._given})"


class _Everybody:
    """All ranks of the default context: what a process_set argument is when none is given."""

    process_set_id = 0
    name = ""
    _get_context: Callable[[], Context]

    def size(self) -> int:
        return self._get_context().size()

    def rank(self) -> int:
        return self._get_context().rank()

    def included(self) -> bool:
        self._get_context()
        return True

    @property
    def ranks(self) -> list[int]:
        return list(range(self.size()))

    def __repr__(self) -> str:
        return "hvd.global_process_set"


global_process_set = _Everybody()
