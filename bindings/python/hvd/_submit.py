"""submit(): an operation from Python's arguments. The compiled module hvd._calls does it, or ctypes where
that is missing.

    submit(context, collective, name, inputs, outputs, group, root, reduction, priority, prescale, postscale,
           splits, set, timeout, wait)

`inputs` and `outputs` are tuples or lists of arrays or of loans (tensors.Borrowed), or None; the same object
twice is an operation in place. The result is an Operation. With `wait` it is None if the operation has
completed and all that came out lies in `outputs`; then Ctrl-C is seen meanwhile, and what it ended with is
raised.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
from ctypes import byref, c_int32, c_int64, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any, Sequence

from . import _abi, borrowing, tensors
from ._handles import Registry, count_calls
from .errors import TIMEOUT, InvalidError
from .tensors import Borrowed

_lib = _abi.lib
_SLICE_NS = 200_000_000  # a wait in the library lasts this long at most, so that Ctrl-C is seen in between
_REQUEST_SIZE = ctypes.sizeof(_abi.Request)
_ERROR_SIZE = ctypes.sizeof(_abi.Error)


def _factor(value: Any, what: str) -> float:
    value = float(value)
    if value == 0:
        raise InvalidError(f"{what} is 0: expected a factor other than 0")
    return value


# ---- by ctypes ----

_memory = Registry()  # what operations borrow, until they have completed


@_abi.DestroyFn
def _let_go(userdata):
    _memory.remove(userdata)


class _Operation:
    """An operation under way, and the memory that it reads and writes. It is made before it is submitted: an
    exception may come at any moment (Ctrl-C), also when the library has it and nobody has heard of that."""

    __slots__ = ("place", "_loans")

    def __init__(self, loans: object):
        self.place = c_void_p()  # of its handle
        self._loans = 0 if loans is None else _memory.add(loans)

    @property
    def pointer(self) -> int | None:
        return self.place.value

    def free(self) -> None:
        """Nobody reads or writes its memory any more."""
        _memory.remove(self._loans)
        self._loans = 0

    def wait(self, timeout: int | None) -> BaseException | None:
        """Of so many nanoseconds: None, or the exception that it ended with. Raises what is not its end."""
        error = _abi.Error(_ERROR_SIZE)
        left = timeout
        while True:
            piece = _SLICE_NS if left is None else min(_SLICE_NS, left)
            status = _abi.call(_lib.hvd_op_wait, self.pointer, max(piece, 1), byref(error))
            if status != TIMEOUT:
                break
            if self.done():  # its own time-out, which ends it
                status = _lib.hvd_op_wait(self.pointer, _abi.DEFAULT_TIMEOUT, byref(error))
                break
            if left is not None:
                left -= piece
                if left <= 0:
                    raise _abi.failure(status, error)
        problem = _abi.failure(status, error) if status else None
        if not self._over():  # the handle is refused, in a forked child say
            raise problem or InvalidError("the operation has not completed")
        self.free()
        return problem

    def _over(self) -> bool:
        ready = c_int32()
        return _lib.hvd_op_test(self.pointer, byref(ready), None) == 0 and bool(ready.value)

    def done(self) -> bool:
        ready = c_int32()
        _abi.check(_lib.hvd_op_test, self.pointer, byref(ready))
        return bool(ready.value)

    def __del__(self) -> None:
        try:
            if self.place.value is None:  # there is none, or it has completed
                self.free()
            elif not self._loans:
                _lib.hvd_op_destroy(self.place)
            else:
                _lib.hvd_op_abandon(self.place, self._loans, _let_go, None)
        except Exception:  # the interpreter is going down
            pass


def operation_of(pointer: int) -> _Operation:
    """Of a native operation that borrows no memory."""
    operation = _Operation(None)
    operation.place.value = pointer
    return operation


def _table(loans: Sequence[Borrowed]) -> Any:
    """An array of descriptors for a group; of a single tensor its own."""
    if len(loans) == 1:
        return ctypes.pointer(loans[0].tensor)
    return (_abi.Tensor * len(loans))(*[loan.tensor for loan in loans])


def _lend(things: Sequence[Any] | None, writable: bool) -> list[Borrowed]:
    return [thing if type(thing) is Borrowed else borrowing.borrow(thing, writable) for thing in things or ()]


def _submit(context: int, collective: int, name: str | None, inputs: Sequence[Any] | None,
            outputs: Sequence[Any] | None, group: bool, root: int, reduction: int, priority: int,
            prescale: float, postscale: float, splits: Sequence[int] | None, process_set: int | None,
            timeout: float | None, wait: bool) -> _Operation | None:
    request = _abi.Request(_REQUEST_SIZE, collective, _abi.integer(root, 32, "root_rank"))
    request.reduction = _abi.integer(reduction, 32, "op")
    request.priority = _abi.integer(priority, 32, "priority")
    if prescale != 1.0:
        request.prescale = _factor(prescale, "prescale_factor")
    if postscale != 1.0:
        request.postscale = _factor(postscale, "postscale_factor")
    if name is not None:
        request.name = _abi.text(name, "name")
    in_place = inputs is outputs
    sources = _lend(inputs, in_place)
    targets = sources if in_place else _lend(outputs, True)
    if sources:
        request.inputs = _table(sources)
    if targets:
        request.outputs = request.inputs if in_place else _table(targets)
    if group:
        request.count = max(len(sources), len(targets))
    if splits is not None:
        rows = [_abi.integer(row, 64, "splits") for row in splits]
        request.splits, request.split_count = (c_int64 * len(rows))(*rows), len(rows)
    request.process_set = process_set
    if timeout is not None:
        request.timeout_ns = _abi.nanoseconds(timeout)
    operation = _Operation((sources, targets))
    if wait:
        _abi.check(_lib.hvd_submit_and_wait, context, byref(request), _SLICE_NS, byref(operation.place))
        if operation.pointer is None:
            return None
        problem = operation.wait(None)
        if problem is not None:
            raise problem
    else:
        _abi.check(_lib.hvd_submit, context, byref(request), byref(operation.place))
    return operation


# ---- which of both ----


def _compiled() -> ModuleType | None:
    """hvd._calls: of a wheel, or of the build tree that the library lies in."""
    if os.environ.get("HVD_PYTHON_COMPILED", "1") == "0":
        return None
    name = "_calls.abi3.so"
    places = [
        Path(__file__).resolve().parent / name,
        *(parent / "bindings" / "python" / name for parent in Path(_abi.LIBRARY_PATH).resolve().parents[1:2])
    ]
    for path in places:
        if path.exists():
            loader = importlib.machinery.ExtensionFileLoader("hvd._calls", str(path))
            spec = importlib.util.spec_from_file_location("hvd._calls", str(path), loader=loader)
            assert spec is not None
            try:
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
                return module
            except ImportError:  # of another Python: ctypes does all that it does
                return None
    return None



count_calls(lambda: sum(_abi.inside.values()))
calls = _compiled()
if calls is not None:
    calls.bind(tuple(ctypes.cast(function, c_void_p).value for function in (
        _lib.hvd_submit, _lib.hvd_submit_and_wait, _lib.hvd_op_wait, _lib.hvd_op_test, _lib.hvd_op_abandon)),
        borrowing.borrow, _abi.failure_of, _abi.text, _abi.integer, _factor, _abi.nanoseconds, Borrowed)
    borrowing.register_type = calls.register_type
    tensors.capsule_of = calls.dlpack
    count_calls(calls.inside)
    os.register_at_fork(after_in_child=calls.forget_inside)
    submit = calls.submit
else:
    submit = _submit
