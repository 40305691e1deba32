"""Statuses of the library as exceptions. Each carries what hvd_error has: who, where, what was expected."""

from __future__ import annotations

import re
from typing import Any

from ._constants import (CALLBACK_FAILED, CLOSED, DRIVER_LOST, HOSTS_UPDATED, INTERNAL, INVALID, JOB_FAILED, MISMATCH,
                         OK as OK, PEER_LOST, REFUSED, REMOVED, TIMEOUT, UNAVAILABLE, UNSUPPORTED)


class HvdError(RuntimeError):
    """Anything but HVD_OK. `status` says what to do next; `rank` is who is to blame, or -1."""

    status = INTERNAL

    def __init__(self, message: str = "", *, status: int | None = None, rank: int = -1, generation: int = 0,
                 vendor_code: int = 0, backend: str = ""):
        super().__init__(message)
        if status is not None:
            self.status = status
        self.message = message
        self.rank = rank
        self.generation = generation
        self.vendor_code = vendor_code
        self.backend = backend


class HorovodInternalError(HvdError):
    """A worker of this generation is gone: the run loop restores the last commit and joins the next one."""

    status = PEER_LOST


class HostsUpdatedInterrupt(HvdError):
    """Hosts were added or removed: the run loop keeps the live values and joins the next generation."""

    status = HOSTS_UPDATED
    skip_sync = False  # Horovod's, for programs that read it: here a sync moves only what differs


class MismatchError(HvdError):
    """The ranks disagree about an operation: a bug in the program. The context stays usable."""

    status = MISMATCH


class InvalidError(HvdError, ValueError):
    """A bad argument or a bad order of calls: a bug in the program."""

    status = INVALID


class WaitTimeoutError(HvdError, TimeoutError):
    """A deadline passed; the message says for whom and for what was waited."""

    status = TIMEOUT


class ClosedError(HvdError):
    """The context was shut down or aborted."""

    status = CLOSED


class RemovedError(HvdError):
    """This worker has no place in the job any more."""

    status = REMOVED


class JobCompleteError(RemovedError, SystemExit):
    """The job has succeeded without this worker, which came too late. Where nobody catches it the process
    ends with status 0."""

    def __init__(self, message: str = "", **fields: Any):
        super().__init__(message, **fields)
        self.code = 0


class DriverLostError(HvdError):
    """The driver can't be reached or is gone."""

    status = DRIVER_LOST


class RefusedError(HvdError):
    """The driver refused this worker: secret, job or version."""

    status = REFUSED


class UnavailableError(HvdError):
    """A backend, file or system resource can't be had."""

    status = UNAVAILABLE


class UnsupportedError(HvdError):
    """No backend in use supports this dtype, memory or operation."""

    status = UNSUPPORTED


class CallbackError(HvdError):
    """A callback of the program reported failure."""

    status = CALLBACK_FAILED


class JobFailedError(HvdError):
    """The job ended in failure; the message is the driver's sentence."""

    status = JOB_FAILED


class InternalError(HvdError):
    """A defect in the library, or out of memory."""

    status = INTERNAL


BY_STATUS: dict[int, type[HvdError]] = {
    kind.status: kind
    for kind in (HorovodInternalError, HostsUpdatedInterrupt, MismatchError, InvalidError, WaitTimeoutError,
                 ClosedError, RemovedError, DriverLostError, RefusedError, UnavailableError, UnsupportedError,
                 CallbackError, JobFailedError, InternalError)
}

_SUCCESS = "the job has ended with success"  # what the library says with HVD_REMOVED


def complete(error: RemovedError) -> JobCompleteError | None:
    """The same, if it says that the job has succeeded."""
    _, found, after = error.message.partition(_SUCCESS)
    return JobCompleteError(f"{_SUCCESS} before this worker joined it{after}") if found else None


# What code of ours within another library (XLA, LightGBM) says, where nothing but a text comes out of it.
_MARK = re.compile(r"(HVD_\w+: .*?) ?\[hvd (\d+) (-?\d+) (\d+)\]", re.S)


def marked(problem: BaseException) -> HvdError | None:
    """The library's exception that another library's carries in its text, if it does."""
    found = _MARK.search(str(problem))
    if found is None:
        return None
    status = int(found.group(2))
    return BY_STATUS.get(status, HvdError)(found.group(1), status=status, rank=int(found.group(3)),
                                           generation=int(found.group(4)))
