"""The functions of the package: those of the context that hvd.init made."""

from __future__ import annotations

import os
from functools import wraps
from operator import index
from typing import Any, Callable, Concatenate, Iterable, ParamSpec, TypeVar

from ._options import WARNING, LogCallback, OptionValue, logger, to_logging
from .context import Context
from .errors import InvalidError, RemovedError, complete
from .handle import Handle
from .process_set import ProcessSet, _Everybody

P = ParamSpec("P")
R = TypeVar("R")
_context: Context | None = None
_parked: Context | None = None  # shut down with keep_place, and a member of its job
keeps_place = False  # what shutdown() does unless it is told. Package `horovod` sets it.
_joined = False  # ever, in this process
_followers: list[Callable[[Context], None]] = []


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None, *,
         connect: bool = True, log: LogCallback | None = None, **options: OptionValue) -> Context:
    """Joins the job: the context that the package's functions use from then on. Again: the same one.

    Again with options or process sets that the context does not have: InvalidError. After
    shutdown(keep_place=True): the place in the job that was kept, without process sets. `comm` and
    process_sets="dynamic" are Horovod's: a communicator of anything but all ranks is refused, and process
    sets may be added at any time here.

    With connect=False it joins later: in the first elastic.run, or when init() is called again. Until then
    there is no rank. Members of a running job wait for a newcomer from where it joins to its sync: so what
    takes long comes before.

    A worker that comes for the first time, when the job has succeeded, says so in one line, and ends with
    status 0 unless it catches the JobCompleteError.
    """
    global _context, _parked
    ranks = None if comm is None else _ranks_of(comm)
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise InvalidError(f"process_sets={process_sets!r}: expected process sets, or 'dynamic'")
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    if is_initialized():
        assert _context is not None
        _context._check_same(options)
        if connect and not _context._connected:
            enter(_context, log)
        _everybody(_context, ranks)
        for process_set in sets:
            _context._share_process_set(process_set)
        return _context
    from ._horovod import begin_timeline, export_place, options_of

    context = _parked if _parked is not None and _is_open(_parked) else None
    if context is not None:
        context._check_same(options)
        _everybody(context, ranks)
        context._return(sets)
        _parked = None
        begin_timeline(context)
        export_place(context)
    else:
        context = Context(log=log, connect=False, **{**options_of(os.environ, logger().warning), **options})

        def take_place() -> None:
            context._return(sets)
            _everybody(context, ranks)
            begin_timeline(context)
            export_place(context)

        context._when_connected.append(take_place)
        if connect:
            try:
                enter(context, log)
            except BaseException:
                context.close()
                raise
    _context = context
    for use in _followers:
        use(context)
    return _context


def enter(context: Context, log: LogCallback | None = None) -> None:
    """context.connect(), in which the first one of this process may find that the job has succeeded."""
    global _joined
    try:
        context.connect()
    except RemovedError as error:
        late = complete(error)
        if late is None or _joined:  # a program that asks again must not end as if it had run to its end
            raise
        (log or to_logging())(WARNING, late.message)
        raise late from None
    _joined = True


def _ranks_of(comm: Any) -> list[int]:
    try:
        return sorted(index(rank) for rank in comm)
    except TypeError:
        raise InvalidError(f"comm: expected a list of all ranks, and not {type(comm).__name__}; "
                           "hvd.ProcessSet is for some of them") from None


def _everybody(context: Context, ranks: list[int] | None) -> None:
    if ranks and ranks != list(range(context.size())):
        raise InvalidError(
            f"comm={ranks}: expected all ranks, 0 to {context.size() - 1}; hvd.ProcessSet is for some "
            "of them")


def context() -> Context:
    """The context of hvd.init; InvalidError before, ClosedError after shutdown."""
    if _context is None:
        raise InvalidError("hvd.init() has not been called" + (" since hvd.shutdown()" if _parked else ""))
    return _context


def follow(use: Callable[[Context], None]) -> None:
    """use(context) is called with the present default context, and with each later one."""
    _followers.append(use)
    if _context is not None:
        use(_context)


def is_default(context: Context) -> bool:
    return context is _context


def _is_open(context: Context) -> bool:
    return not context.closed and context._handle.ours


def is_initialized() -> bool:
    return _context is not None and _is_open(_context)


def shutdown(timeout: float | None = None, *, keep_place: bool | None = None) -> None:
    """Says that this worker is done, waits for the others, and closes.

    With keep_place (None: False, and True with package `horovod`), on every rank alike, it waits until all
    have called it, and says that it is done when the process ends: until then init() joins again. Only a
    worker that the job's driver started, in its own main process, keeps its place; any other closes.
    """
    global _context, _parked
    if _context is None:
        # What was kept is given up by a shutdown() that keeps nothing.
        if _parked is not None and keep_place is False:
            given_up, _parked = _parked, None
            given_up.shutdown(timeout)
    elif (keeps_place if keep_place is None else keep_place) and _context._park(timeout):
        _context, _parked = None, _context
    else:
        _context.shutdown(timeout)


def _of_default(method: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    @wraps(method)
    def function(*arguments: P.args, **options: P.kwargs) -> R:
        return method(_context or context(), *arguments, **options)

    del function.__wrapped__  # its signature would show self
    return function


membership = _of_default(Context.membership)
rank = _of_default(Context.rank)
size = _of_default(Context.size)
local_rank = _of_default(Context.local_rank)
local_size = _of_default(Context.local_size)
cross_rank = _of_default(Context.cross_rank)
cross_size = _of_default(Context.cross_size)
generation = _of_default(Context.generation)
backend = _of_default(Context.backend)
backend_choice = _of_default(Context.backend_choice)
recoveries = _of_default(Context.recoveries)
abort = _of_default(Context.abort)
leave = _of_default(Context.leave)
has_left = _of_default(Context.has_left)
register_listener = _of_default(Context.register_listener)
remove_listener = _of_default(Context.remove_listener)
events = _of_default(Context.events)
start_timeline = _of_default(Context.start_timeline)
stop_timeline = _of_default(Context.stop_timeline)
add_process_set = _of_default(Context.add_process_set)
remove_process_set = _of_default(Context.remove_process_set)
allreduce = _of_default(Context.allreduce)
allreduce_ = _of_default(Context.allreduce_)
allreduce_async = _of_default(Context.allreduce_async)
allreduce_async_ = _of_default(Context.allreduce_async_)
grouped_allreduce = _of_default(Context.grouped_allreduce)
grouped_allreduce_ = _of_default(Context.grouped_allreduce_)
grouped_allreduce_async = _of_default(Context.grouped_allreduce_async)
grouped_allreduce_async_ = _of_default(Context.grouped_allreduce_async_)
broadcast = _of_default(Context.broadcast)
broadcast_ = _of_default(Context.broadcast_)
broadcast_async = _of_default(Context.broadcast_async)
broadcast_async_ = _of_default(Context.broadcast_async_)
broadcast_variables = _of_default(Context.broadcast_variables)
broadcast_variables_async = _of_default(Context.broadcast_variables_async)
broadcast_object = _of_default(Context.broadcast_object)
allgather = _of_default(Context.allgather)
allgather_async = _of_default(Context.allgather_async)
grouped_allgather = _of_default(Context.grouped_allgather)
grouped_allgather_async = _of_default(Context.grouped_allgather_async)
allgather_object = _of_default(Context.allgather_object)
reducescatter = _of_default(Context.reducescatter)
reducescatter_async = _of_default(Context.reducescatter_async)
grouped_reducescatter = _of_default(Context.grouped_reducescatter)
grouped_reducescatter_async = _of_default(Context.grouped_reducescatter_async)
alltoall = _of_default(Context.alltoall)
alltoall_async = _of_default(Context.alltoall_async)
gather_object = _of_default(Context.gather_object)
send = _of_default(Context.send)
send_async = _of_default(Context.send_async)
receive = _of_default(Context.receive)
receive_async = _of_default(Context.receive_async)
reduce = _of_default(Context.reduce)
reduce_async = _of_default(Context.reduce_async)
gather = _of_default(Context.gather)
gather_async = _of_default(Context.gather_async)
scatter = _of_default(Context.scatter)
scatter_async = _of_default(Context.scatter_async)
barrier = _of_default(Context.barrier)
barrier_async = _of_default(Context.barrier_async)
join = _of_default(Context.join)
join_async = _of_default(Context.join_async)


def synchronize(handle: Handle) -> Any:
    """Waits for an operation: its result."""
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether an operation has completed."""
    return handle.done()


_Everybody._get_context = staticmethod(context)
