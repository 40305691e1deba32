"""What must survive, in a native state, under keys."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from contextlib import contextmanager
from ctypes import byref, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterable, Iterator

from .. import _abi
from .._default import context as default_context
from .._default import is_default
from .._horovod import export_place
from .._handles import Native, Registry, close_at_exit
from ..borrowing import borrow
from ..codec import CodecLike, JsonCodec, codec_of
from ..context import Context
from ..errors import CALLBACK_FAILED, HvdError, InvalidError
from ..facts import Event, EventKind, plain_of
from ..tensors import Borrowed
from ._objects import _forget_object, _load, _Memory, _Object, _objects, _Problem, _save
from .sampler import ElasticSampler
from .shards import NO_COPIES, Shard, _forget_loss, _forget_shard, _losses, _lost, _reshard, _shards

_lib = _abi.lib
_resets = Registry()


@_abi.fails_unless_done(_abi.ResetFn)
def _reset(userdata):
    return _resets.get(userdata)()


@_abi.DestroyFn
def _forget_reset(userdata):
    _resets.remove(userdata)


def _placed(context: Context, callback: Callable[[], None]) -> None:
    """A reset callback may read the variables of its place, as Horovod's scripts do."""
    if is_default(context):
        export_place(context)
    callback()


@dataclass(frozen=True)
class StateStatistics:
    revision: int
    commits: int
    restores: int
    syncs: int
    bytes: int
    sync_sent_bytes: int
    sync_received_bytes: int
    last_commit_ns: int
    written_bytes: int
    shard_bytes: int
    copy_bytes: int
    fed_bytes: int


class State:
    """Arrays, objects and samplers under keys, the same on every rank. Its methods are Horovod's.

    Arrays stay where they are: a restore or a sync writes into them. A state is used by one thread at a time.

    A subclass registers what it keeps (add_array, add_object), or does as in Horovod: it overrides save,
    restore and sync, and reset, on_reset or on_hosts_updated if it likes. commit() then calls its save(); the
    run loop calls its restore() when a peer was lost, and its on_reset() and sync() before the function is
    called. (bcast_object, get_rank) are for such classes.
    """

    _handle: Native

    def __init__(self, bcast_object: Callable[..., Any] | None = None,
                 get_rank: Callable[[], int] | None = None, *, context: Context | None = None):
        base = object.__setattr__
        base(self, "_context", context or default_context())
        base(self, "_bcast_object", bcast_object or self._context.broadcast_object)
        base(self, "_rank", get_rank or self._context.rank)
        base(self, "_problem", _Problem())
        base(self, "_user", threading.Lock())
        base(self, "_memory", {})
        base(self, "_initial", None)
        base(self, "_late", None)
        base(self, "_host_messages", queue.Queue())
        pointer = c_void_p()
        _abi.check(_lib.hvd_state_create, self._context._handle.pointer, byref(pointer))
        base(self, "_handle", Native(pointer.value, _lib.hvd_state_destroy))
        close_at_exit(self._handle)  # which calls back what the callbacks keep

    _context: Context
    _problem: _Problem
    _user: threading.Lock
    _memory: dict[str, Any]  # Borrowed, Shard, _Memory, _Object or ElasticSampler by key
    _initial: dict[str, Any] | None
    _late: str | None  # a key that has no initial copy
    _host_messages: queue.Queue  # Horovod's scripts look whether it is empty

    # ---- what it holds ----

    def add_array(self, key: str, array: Any) -> None:
        """Memory that is committed, restored and synced in place; it stays borrowed."""
        loan = borrow(array, writable=True)
        with self._in_use("add_array"):
            _abi.check(_lib.hvd_state_add_tensor, self._handle.pointer, _abi.text(key, "key"),
                       byref(loan.tensor))
        self._hold(key, loan)

    def add_value(self, key: str, memory: Any) -> None:
        """A little plain data in memory that stays borrowed, 1 to 65536 bytes: what other languages keep in a
        variable."""
        loan = borrow(memory, writable=True)
        with self._in_use("add_value"):
            _abi.check(_lib.hvd_state_add_value, self._handle.pointer, _abi.text(key, "key"),
                       loan.tensor.data, loan.count * _lib.hvd_dtype_size(loan.tensor.dtype))
        self._hold(key, loan)

    def add_object(self, key: str, get: Callable[[], Any], put: Callable[[Any], None],
                   codec: CodecLike | None = None, *, until_end: bool = False) -> None:
        """get() gives the value for a commit; put(value) takes one back, this rank's or another's.

        until_end: a commit that is begun copies the value's tensors later. The program writes none of them
        before commit_end(), as it writes no array of add_array()."""
        translator = codec_of(codec)
        pieces = translator.pieces if isinstance(translator,
                                                 JsonCodec) else lambda thing: [translator.dumps(thing)]
        self._add_native(
            key, _Object(self._problem, lambda: pieces(get()), lambda data: put(translator.loads(data)),
                         until_end))

    def _add_native(self, key: str, thing: _Object) -> None:
        with self._in_use("add_object"):
            _abi.check(_lib.hvd_state_add_object, self._handle.pointer, _abi.text(key, "key"), _save, _load,
                       _objects.add(thing), _forget_object)
        self._hold(key, thing)

    def add_memory(self, key: str, get: Callable[[], Any], put: Callable[[memoryview], None]) -> None:
        """An array whose memory may be another one at each commit: what frameworks that copy on write have.

        get() gives the array for a commit, of which the library copies the bytes; put(bytes) takes those of a
        restore or sync, and must copy them before it returns. The same number of bytes on every rank.
        """
        thing = _Memory(self._problem, get, put)
        with self._in_use("add_memory"):
            _abi.check(_lib.hvd_state_add_object, self._handle.pointer, _abi.text(key, "key"), _save, _load,
                       _objects.add(thing), _forget_object)
        self._hold(key, thing)

    def add_sampler(self, key: str, sampler: ElasticSampler) -> None:
        with self._in_use("add_sampler"):
            _abi.check(_lib.hvd_state_add_sampler, self._handle.pointer, _abi.text(key, "key"),
                       sampler._handle.pointer)
        self._hold(key, sampler)

    def add_shard(self, key: str, elements: int, dtype: Any = "float32", *, copies: int | None = None,
                  parity: int | None = None,
                  allocate: Callable[[int], Any] | None = None,
                  split: Callable[[int, int], tuple[int, int]] | None = None) -> Shard:
        """This rank's range of a flat vector of so many `elements`, which outlives the loss of `copies`
        workers at once (default 1; 0: of none). With `parity`=m instead, for 1/m of the memory of a copy,
        workers are in groups of m + 1 or more, and one of each group may be lost at once
        (hvd_state_add_shard_with_parity).

        allocate(length) gives memory for a range: a one-dimensional array with its initial values, on the
        host, or on a GPU that a backend serves; by default NumPy's zeros of `dtype`. It is asked now, and
        again after each change of ranks.
        split(rank, size) gives (offset, length); by default an even split. With shards all ranks take part in
        each commit and save.
        """
        def zeros(length: int) -> Any:
            import numpy

            return numpy.zeros(length, dtype)

        if copies is not None and parity is not None:
            raise InvalidError(f"shard {key!r} has copies={copies} and parity={parity}: expected one of them")
        shard = Shard(self._problem, key, elements, allocate or zeros, split,
                      (self._context.rank(), self._context.size()))
        with self._in_use("add_shard"):
            add, kept = _lib.hvd_state_add_shard, 1 if copies is None else copies or NO_COPIES
            if parity is not None:
                add, kept = _lib.hvd_state_add_shard_with_parity, parity
            _abi.check(add, self._handle.pointer, _abi.text(key, "key"), byref(shard._loan.tensor), elements,
                       shard.offset, kept, _reshard, _shards.add(shard), _forget_shard)
        self._hold(key, shard)
        return shard

    def on_lost(self, load: Callable[[str], None]) -> None:
        """If more workers are lost than there are copies: load(sentence) is called on every rank, and loads
        everything that is registered from the program's own checkpoint. Without it the job ends with that
        sentence."""
        with self._in_use("on_lost"):
            number = _losses.add(lambda sentence: self._problem.guard(lambda: load(sentence)))
            _abi.check(_lib.hvd_state_on_lost, self._handle.pointer, _lost, number, _forget_loss)

    def set_array(self, key: str, array: Any) -> None:
        """The key's memory is `array` from now on, in place of what add_array(), add_value() or add_shard()
        has registered: of the same shape and dtype, on the same device. Nothing is copied. The next commit
        takes what it holds then; a restore and a sync write there. What was committed stays."""
        held = self._memory.get(key)
        if not isinstance(held, (Borrowed, Shard)):
            raise InvalidError(f"set_array: {key!r} is no array or shard of the state: expected one that was "
                               "added")
        loan, before = borrow(array, writable=True), held if isinstance(held, Borrowed) else held._loan
        if (loan.shape, loan.dtype, loan.place) != (before.shape, before.dtype, before.place):
            raise InvalidError(f"set_array: {key!r} is {loan.describe()}: expected {before.describe()}, as "
                               "it was")
        with self._in_use("set_array"):
            _abi.check(_lib.hvd_state_set_data, self._handle.pointer, _abi.text(key, "key"), loan.tensor.data)
        if isinstance(held, Shard):
            held.array, held._loan = array, loan
        else:
            self._memory[key] = loan

    def remove(self, key: str) -> None:
        with self._in_use("remove"):
            _abi.check(_lib.hvd_state_remove, self._handle.pointer, _abi.text(key, "key"))
        self._memory.pop(key, None)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Called in this order when a new generation is formed, by those that were members before: with
        option reset_before_sync, which hvd.init() sets, before the state is synced, else after that.
        HOROVOD_RANK and the like are the new generation's then, if the context is hvd.init()'s."""
        for callback in callbacks:
            with self._in_use("register_reset_callbacks"):
                number = _resets.add(partial(self._problem.guard, partial(_placed, self._context, callback)))
                _abi.check(_lib.hvd_state_on_reset, self._handle.pointer, _reset, number, _forget_reset)

    # ---- what Horovod's State does ----

    def commit(self) -> None:
        """save(), then check_host_updates()."""
        if not self._overrides("save"):
            self._call("commit", _lib.hvd_state_commit)
            return
        before = self.revision
        self.save()
        if self.revision == before:  # commits are counted: who holds the newest one leads after a failure
            State.save(self)
        self.check_host_updates()

    def commit_begin(self) -> None:
        """Begins a commit that is copied while the program computes. Values and objects are saved when it
        returns; arrays that are registered must not be written before commit_end(), the next commit, restore
        or sync."""
        if self._overrides("save"):
            raise InvalidError(
                "commit_begin: the state overrides save(): expected one whose arrays the library copies")
        self._call("commit_begin", _lib.hvd_state_commit_begin)

    def commit_end(self) -> None:
        """Waits for what is left of the commit that was begun, then check_host_updates()."""
        self._call("commit_end", _lib.hvd_state_commit_end)

    def save(self) -> None:
        """Copies everything, without any communication."""
        self._call("save", _lib.hvd_state_save)

    def restore(self) -> None:
        """Puts back the last commit, bit for bit; before the first one what the state was made with."""
        if self._initial is None or self.revision:
            self._call("restore", _lib.hvd_state_restore)
            return
        if self._late:
            raise InvalidError(f"restore: this worker joined a running job, and {self._late!r} comes from "
                               "the others in its first sync: expected a sync before")
        with self._in_use("restore"):
            self._put_back(self._initial)

    def sync(self) -> None:
        """Makes all ranks' state equal to that of whoever has the newest commit. The run loop does it."""
        self._call("sync", _lib.hvd_state_sync)

    def reset(self) -> None:
        """For a subclass: called when a new generation is there, before sync()."""

    def on_reset(self) -> None:
        """The run loop calls it when a new generation is there. An override calls this one, which calls
        reset(); reset callbacks are called by the library in any case."""
        self.reset()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """Called in a thread of the library's when the driver sees hosts change, while the run loop runs. An
        override calls this one. update_res: the hvd.Event."""
        self._host_messages.put((timestamp, update_res))

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt on every rank alike if hosts have changed."""
        with self._in_use("check_host_updates"):  # it looks at no memory
            _abi.check(_lib.hvd_state_check_host_updates, self._handle.pointer)

    @property
    def revision(self) -> int:
        """Number of the last commit: 0 before the first."""
        return int(_lib.hvd_state_revision(self._handle.pointer))

    def statistics(self) -> StateStatistics:
        raw = _abi.StateStatistics()
        _abi.check(_lib.hvd_state_get_info, self._handle.pointer, byref(raw))
        return plain_of(StateStatistics, raw)

    def close(self) -> None:
        """Ends the borrowing of what was registered; waits for a commit that is being copied. InvalidError:
        another call is under way, in another thread or around this one."""
        with self._in_use("close"):
            self._handle.close()
            self._memory.clear()

    def __del__(self) -> None:
        """A commit that was begun may still be copied: the memory goes after the handle."""
        try:
            self._handle.close()
        except Exception:  # it never came to be, or the interpreter is going down
            pass

    # ---- inside ----

    @contextmanager
    def _in_use(self, what: str) -> Iterator[None]:
        if not self._user.acquire(blocking=False):
            raise InvalidError(
                f"{what}: another call on this state is under way, in another thread or around this one")
        problem = self._problem
        try:
            yield
            if what in ("commit", "commit_begin", "commit_end", "save", "restore", "sync"):
                problem.begun = []  # they have waited for what was begun before
        finally:
            if what == "commit_begin":
                problem.begun = problem.begun + problem.lent
            problem.lent = []
            self._user.release()

    def _call(self, what: str, function: Any) -> None:
        try:
            with self._in_use(what):
                self._check_memory()
                _abi.check(function, self._handle.pointer)
        except HvdError as error:
            raise self._why(error)
        self._initial = None  # there is a commit, or a state that was synced

    def _synced(self) -> None:
        """The run loop has: nothing of before is under way any more."""
        self._initial = None
        object.__setattr__(self, "_host_messages", queue.Queue())

    def _hear_of_hosts(self) -> int:
        """on_hosts_updated() is called when the driver sees hosts change: the listener's number."""
        mine = weakref.ref(self)

        def tell(event: Event) -> None:
            state = mine()
            if state is not None:
                state.on_hosts_updated(time.time(), event)

        return self._context.register_listener(tell, EventKind.HOSTS_UPDATED)

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(State, method)

    def _hold(self, key: str, item: Any) -> None:
        self._memory[key] = item
        if self._initial is not None and not self.revision:  # a subclass adds its own after _keep_initial()
            self._keep(key, item, self._initial)

    def _keep_initial(self) -> None:
        """What restore() gives before there is a commit: what is registered by then, and what comes later."""
        found: dict[str, Any] = {}
        for key, item in self._memory.items():
            self._keep(key, item, found)
        self._initial = found

    def _keep(self, key: str, item: Any, found: dict[str, Any]) -> None:
        """Of arrays a worker that joins a running job keeps no copy: its first sync overwrites them, and the
        others wait for it."""
        late = self._context._connected and self._context.generation() > 1
        if late and isinstance(item, (Borrowed, Shard, _Memory)):
            self._late = self._late or key
        elif isinstance(item, Borrowed):
            found[key] = item.copy()
        elif isinstance(item, ElasticSampler) and not self._context._connected:
            self._context._when_connected.append(lambda: found.update({key: item.state_dict()}))
        elif isinstance(item, ElasticSampler):
            found[key] = item.state_dict()
        elif isinstance(item, Shard):
            found[key] = item._loan.copy()
        else:
            try:
                found[key] = borrow(item.get()).copy() if isinstance(item, _Memory) else item.get()
            except Exception:  # the first commit will say so
                pass

    def _put_back(self, values: dict[str, Any]) -> None:
        self._check_memory()
        for key, value in values.items():
            item = self._memory.get(key)
            if isinstance(item, Borrowed):
                item.fill(value)
            elif isinstance(item, ElasticSampler):
                item.load_state_dict(value)
            elif isinstance(item, Shard):
                item._loan.fill(value)
            elif isinstance(item, _Memory):
                item.put(memoryview(value))
            elif item is not None:
                item.put(value)

    def _check_memory(self) -> None:
        """What is registered must still be where it was: else a commit would keep, and a restore change, what
        nobody sees."""
        for key, loan in self._memory.items():
            if isinstance(loan, (Borrowed, Shard)):
                loan.check(f"{key!r}")

    def _why(self, error: HvdError) -> BaseException:
        """The callback's own exception where the status only says that a callback failed."""
        problem = self._problem.take()
        if error.status == CALLBACK_FAILED and problem is not None:
            problem.__cause__ = error
            return problem
        return error
