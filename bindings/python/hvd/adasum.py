"""Adasum: a reduction between sum and mean, made of messages between pairs of ranks.

Of two gradients a and b it is (1 - a.b / 2a.a) a + (1 - a.b / 2b.b) b: their sum where they are orthogonal,
their mean where they are parallel. Of more it is that of two halves of the ranks, by vector halving and
distance doubling, so that each rank sends about twice its data whatever their number: S. Maleki et al.,
"Scaling Distributed Training with Adaptive Summation", MLSys 2021 (arXiv:2006.02924), section 4.2. Ranks
beyond the largest power of two first combine theirs with another's.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Callable, Protocol, Sequence

from . import _abi
from .borrowing import borrow, empty_like
from .errors import InvalidError, MismatchError, UnsupportedError
from .tensors import NAMES, Borrowed

if TYPE_CHECKING:
    import numpy

_PIECE = 1 << 16  # elements whose products are added up at a time, in double precision


class Channel(Protocol):
    """Messages of one operation: both ranks of a pair call exchange() with each other, and arrays are flat.
    """

    def exchange(self, peer: int, mine: numpy.ndarray, theirs: numpy.ndarray) -> None: ...

    def send(self, peer: int, mine: numpy.ndarray) -> None: ...

    def receive(self, peer: int, theirs: numpy.ndarray) -> None: ...


def combine(channel: Channel, flat: numpy.ndarray, ends: Sequence[int], rank: int, size: int) -> None:
    """Of flat (float32 or float64) on every rank, in place; tensor i, which has its own factors, ends at
    ends[i]."""
    import numpy as np

    paired = 1 << (size.bit_length() - 1)
    if rank >= paired:
        channel.send(rank - paired, flat)
        channel.receive(rank - paired, flat)
        return
    if rank + paired < size:
        other = np.empty_like(flat)
        channel.receive(rank + paired, other)
        _add(flat, other, 0, ends, _products(flat, other, 0, ends))
    halves = []
    begin, end, distance = 0, len(flat), 1
    while distance < paired:
        peer, lower, middle = rank ^ distance, not rank & distance, (begin + end) // 2
        keep, give = ((begin, middle), (middle, end)) if lower else ((middle, end), (begin, middle))
        mine, other = flat[slice(*keep)], np.empty(keep[1] - keep[0], flat.dtype)
        channel.exchange(peer, flat[slice(*give)], other)
        a, b = (mine, other) if lower else (other, mine)
        products = _products(a, b, keep[0], ends)
        theirs, step = np.empty_like(products), 1
        while step <= distance:  # over all ranks that hold a part of these two
            channel.exchange(rank ^ step, products.reshape(-1), theirs.reshape(-1))
            products += theirs
            step *= 2
        if not lower:
            products[[0, 1]] = products[[1, 0]]  # mine comes first below
        _add(mine, other, keep[0], ends, products)
        halves.append((peer, keep, give))
        begin, end = keep
        distance *= 2
    for peer, keep, give in reversed(halves):
        channel.exchange(peer, flat[slice(*keep)], flat[slice(*give)])
    if rank + paired < size:
        channel.send(rank + paired, flat)


def _parts(begin: int, length: int, ends: Sequence[int]) -> list[tuple[int, slice]]:
    """Of the piece that begins at `begin`: each tensor that has a part in it, and where in the piece."""
    found, first = [], 0
    for index, end in enumerate(ends):
        low, high = max(first, begin), min(end, begin + length)
        if low < high:
            found.append((index, slice(low - begin, high - begin)))
        first = end
    return found


def _products(a: numpy.ndarray, b: numpy.ndarray, begin: int, ends: Sequence[int]) -> numpy.ndarray:
    """a.a, b.b and a.b for each tensor, of this piece."""
    import numpy as np

    sums = np.zeros((3, len(ends)))
    for index, where in _parts(begin, len(a), ends):
        for start in range(where.start, where.stop, _PIECE):
            piece = slice(start, min(start + _PIECE, where.stop))
            x, y = a[piece].astype(np.float64), b[piece].astype(np.float64)
            sums[:, index] += x @ x, y @ y, x @ y
    return sums


def _add(a: numpy.ndarray, b: numpy.ndarray, begin: int, ends: Sequence[int],
         products: numpy.ndarray) -> None:
    """Into a; products: of the whole tensors. One that is zero adds nothing to the other."""
    for index, where in _parts(begin, len(a), ends):
        aa, bb, ab = (float(product) for product in products[:, index])
        a[where] *= a.dtype.type(1 - ab / (2 * aa) if aa > 0 else 1)
        a[where] += a.dtype.type(1 - ab / (2 * bb) if bb > 0 else 1) * b[where]


# ---- on the library's tensors ----

def _numpy_of(loan: Borrowed) -> numpy.ndarray:
    import numpy as np

    name = NAMES[loan.dtype]
    if loan.tensor.memory != 0:
        raise InvalidError("Adasum: the tensor lies on a device; expected host memory")
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise InvalidError(f"Adasum: dtype {name}; expected float16, bfloat16, float32 or float64")
    raw = (ctypes.c_char * (loan.count * _abi.lib.hvd_dtype_size(loan.dtype))).from_address(
        loan.tensor.data or 0)
    return np.frombuffer(raw, np.uint16 if name == "bfloat16" else name)


def _widened(values: numpy.ndarray, name: str) -> numpy.ndarray:
    import numpy as np

    if name == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64 if name == "float64" else np.float32)


def _narrowed(values: numpy.ndarray, name: str) -> numpy.ndarray:
    import numpy as np

    if name != "bfloat16":
        return values
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def start(context: Any, wait: bool, tensors: Sequence[Any], name: str | None, out: Sequence[Any] | None,
          prescale: float, postscale: float, process_set: Any, timeout: float | None) -> Any:
    """allreduce with op=Adasum, of several: their results, or a handle to them."""
    sources = [borrow(tensor) for tensor in tensors]
    if out is None:
        made = [empty_like(tensor, source) for tensor, source in zip(tensors, sources)]
        results, targets = [result for result, _ in made], [loan for _, loan in made]
    else:
        results = list(out)
        if len(results) != len(sources):
            raise InvalidError(f"out has {len(results)} entries for {len(sources)} tensors")
        targets = [borrow(result, writable=True) for result in results]
        for source, target in zip(sources, targets):
            if (source.dtype, source.shape) != (target.dtype, target.shape):
                raise InvalidError(f"out is {NAMES[target.dtype]} of shape {target.shape}; expected "
                                   f"{NAMES[source.dtype]} of shape {source.shape}")
    for loan in sources:
        _numpy_of(loan)  # what can't be reduced is refused at once
    ranks = list(range(context.size())) if not hasattr(process_set, "ranks") else process_set.ranks
    if context.rank() not in ranks:
        raise InvalidError(
            f"process_set {process_set.name!r} has the ranks {ranks}, and not {context.rank()}")
    label = _number(context) if name is None else name
    if getattr(process_set, "name", ""):
        label = f"{process_set.name}/{label}"

    def work() -> list[Any]:
        reduce(context, sources, targets, label, ranks, prescale, postscale, process_set, timeout)
        return results

    return work() if wait else Work(work, f"adasum {label}")


def _number(context: Any) -> str:
    """For an operation without a name: ranks call these in the same order."""
    generation = context.generation()
    before, count = getattr(context, "_adasums", (generation, 0))
    count = count + 1 if before == generation else 1
    context._adasums = (generation, count)
    return f"noname.{count}"


class _Messages:
    """A channel of a context: members of a set, by their place in it."""

    def __init__(self, context: Any, name: str, ranks: Sequence[int], timeout: float | None):
        self.context, self.name, self.ranks, self.options = context, name, ranks, {"timeout": timeout}
        self.sent: dict[int, int] = {}

    def _next(self, peer: int) -> str:
        """Both ranks of a pair count alike: whatever they say to each other they say in turn."""
        number = self.sent[peer] = self.sent.get(peer, -1) + 1
        return f"{self.name}.{number}"

    def exchange(self, peer: int, mine: numpy.ndarray, theirs: numpy.ndarray) -> None:
        name, rank = self._next(peer), self.ranks[peer]
        outgoing = self.context.send_async(mine, rank, name, **self.options)
        self.context.receive(theirs, rank, name, **self.options)
        outgoing.wait()

    def send(self, peer: int, mine: numpy.ndarray) -> None:
        self.context.send(mine, self.ranks[peer], self._next(peer), **self.options)

    def receive(self, peer: int, theirs: numpy.ndarray) -> None:
        self.context.receive(theirs, self.ranks[peer], self._next(peer), **self.options)


def _agree(context: Any, tensors: list[Any], name: str, size: int, process_set: Any,
           timeout: float | None) -> None:
    """The same error on every rank if they bring different tensors, or if one has joined: else who has no
    part in a pair's would wait."""
    everybody = context.allgather_object(tensors, f"adasum {name}", "json", process_set=process_set,
                                         timeout=timeout)
    if len(everybody) < size:
        raise UnsupportedError(f"adasum {name!r}: {size - len(everybody)} of {size} ranks have joined: "
                               "expected none, as Adasum combines all")
    other = next((index for index, theirs in enumerate(everybody) if theirs != everybody[0]), None)
    if other is not None:
        raise MismatchError(
            f"adasum {name!r}: {everybody[0]} on the first rank, {everybody[other]} on that of place "
            f"{other}")


def reduce(context: Any, sources: Sequence[Borrowed], targets: Sequence[Borrowed], name: str,
           ranks: Sequence[int], prescale: float, postscale: float, process_set: Any,
           timeout: float | None) -> None:
    """Of each source into its target; all as one operation. Returns when it is done, on every rank of
    `ranks`."""
    import numpy as np

    arrays, outputs = [_numpy_of(loan) for loan in sources], [_numpy_of(loan) for loan in targets]
    names = [NAMES[loan.dtype] for loan in sources]
    _agree(context, [[dtype, *loan.shape] for dtype, loan in zip(names, sources)], name, len(ranks),
           process_set, timeout)
    channel = _Messages(context, f"adasum {name}", ranks, timeout)
    for kind in sorted({"float64" if each == "float64" else "float32" for each in names}):
        chosen = [i for i, each in enumerate(names) if (each == "float64") == (kind == "float64")]
        wide = [_widened(arrays[i], names[i]) for i in chosen]
        flat = np.concatenate(wide) if wide else np.empty(0, kind)
        ends = np.cumsum([len(each) for each in wide]).tolist()
        if prescale != 1.0:
            flat *= flat.dtype.type(prescale)
        combine(channel, flat, ends, ranks.index(context.rank()), len(ranks))
        if postscale != 1.0:
            flat *= flat.dtype.type(postscale)
        for i, first, last in zip(chosen, [0, *ends], ends):
            outputs[i][...] = _narrowed(flat[first:last], names[i])


class Work:
    """A function under way in a thread of its own, which ends with it: used as a Handle."""

    def __init__(self, function: Callable[[], Any], name: str):
        from concurrent.futures import Future

        self.name = name
        self._future: Any = Future()
        self._function = function
        threading.Thread(target=self._run, name=f"hvd {name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._function())
        except BaseException as problem:
            self._future.set_exception(problem)
        del self._function

    def done(self) -> bool:
        return self._future.done()

    poll = done

    def wait(self, timeout: float | None = None) -> Any:
        """Its result. After `timeout` seconds WaitTimeoutError, and it goes on."""
        from concurrent.futures import TimeoutError as Late

        from .errors import WaitTimeoutError
        try:
            return self._future.result(timeout)
        except Late:
            if self._future.done():
                raise
            raise WaitTimeoutError(f"{self.name} has not completed after {timeout} s") from None

    result = wait

    def exception(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def __await__(self) -> Any:
        import asyncio

        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        return f"<hvd.Handle {self.name!r} {'done' if self.done() else 'under way'}>"
