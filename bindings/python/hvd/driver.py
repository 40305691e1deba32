"""The driver, embedded: start a job from Python, with its own discovery, launch and output where that is
wanted."""

from __future__ import annotations

import enum
import os
import sys
import traceback
from ctypes import byref, c_char_p, c_void_p, string_at
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from . import _abi
from . import _constants as c
from ._library import hvdrun
from ._handles import Native, Registry, close_at_exit
from ._options import LogCallback, NativeOptions, OptionValue
from .errors import TIMEOUT, HvdError, InvalidError
from .facts import plain_of

_lib = _abi.lib
_callbacks = Registry()
# A wait in the library lasts this long at most, so that Ctrl-C is seen in between.
_SLICE_NS = 200_000_000
Discover = Callable[[], Mapping[str, int]]


@dataclass(frozen=True)
class LaunchRequest:
    """A worker to start: `environment` must reach it, it holds its identity and the job's secret."""

    worker: int
    host: str
    slot: int
    environment: dict[str, str]


class Phase(enum.IntEnum):
    NEW = c.PHASE_NEW
    FORMING = c.PHASE_FORMING
    RUNNING = c.PHASE_RUNNING
    ENDING = c.PHASE_ENDING
    SUCCEEDED = c.PHASE_SUCCEEDED
    FAILED = c.PHASE_FAILED


@dataclass(frozen=True)
class DriverStatus:
    phase: Phase
    size: int
    workers: int
    slots: int
    resets: int
    generation: int
    membership_epoch: int
    hosts_blocked: int
    port: int
    sentence: str
    stall: str
    try_again: int
    stalled: int
    goodput: float
    commits_per_second: float


class Format(enum.IntEnum):
    """How Driver.describe tells of a job: docs/observability.md."""

    TEXT = c.DRIVER_FORMAT_TEXT
    JSON = c.DRIVER_FORMAT_JSON
    OPENMETRICS = c.DRIVER_FORMAT_OPENMETRICS
    LINE = c.DRIVER_FORMAT_LINE


class Launcher:
    """Launch of one's own: subclass it. Report ends with Driver.worker_exited."""

    def start(self, request: LaunchRequest) -> None:
        """An exception: the worker can't be started, which counts as a failure of the slot."""
        raise NotImplementedError

    def stop(self, worker: int, force: bool) -> None:
        """Asks for its end, politely or at once."""
        raise NotImplementedError


def _say(what: str) -> None:
    print(f"hvd: in {what}:", file=sys.stderr)
    traceback.print_exc()


@_abi.fails_unless_done(_abi.DiscoverFn)
def _discover(userdata, add, sink):
    try:
        for name, slots in dict(_callbacks.get(userdata)()).items():
            add(sink, str(name).encode(), int(slots))
        return 0
    except BaseException:
        _say("the discovery of hosts")
        return 1


@_abi.fails_unless_done(_abi.LaunchFn)
def _start(userdata, launch):
    try:
        raw, environment, index = launch.contents, {}, 0
        while raw.environment[index] is not None:
            name, _, value = raw.environment[index].decode().partition("=")
            environment[name] = value
            index += 1
        _callbacks.get(userdata).start(LaunchRequest(raw.worker, raw.host.decode(), raw.slot, environment))
        return 0
    except BaseException:
        _say("the start of a worker")
        return 1


@_abi.StopFn
def _stop(userdata, worker, force):
    try:
        _callbacks.get(userdata).stop(worker, bool(force))
    except BaseException:
        _say("the stop of a worker")


@_abi.OutputFn
def _output(userdata, rank, host, slot, is_stderr, line):
    try:
        _callbacks.get(userdata)(rank, host.decode("utf-8", "replace"), slot, bool(is_stderr),
                                 line.decode("utf-8", "replace"))
    except BaseException:
        _say("the output callback")


@_abi.DestroyFn
def _forget(userdata):
    _callbacks.remove(userdata)


def _strings(values: Sequence[str]):
    return (c_char_p * (len(values) + 1))(*[_abi.text(value, "command or environment") for value in values],
                                          None)


class Driver:
    """Driver(["python", "train.py"], np=2, hosts="a:1,b:1"). Options are keywords, as in docs/options.md.

    environment: added to this process's, for workers of the local launcher. discover() -> {host: slots} is
    asked every discovery_interval, in a thread of the library; launcher starts workers itself; output(rank,
    host, slot, is_stderr, line) gets what workers of the local launcher print.
    """

    def __init__(self, command: Sequence[str] | None = None, *, environment: Mapping[str, str] | None = None,
                 discover: Discover | None = None, launcher: Launcher | None = None,
                 output: Callable[[int, str, int, bool, str], None] | None = None,
                 log: LogCallback | None = None, **options: OptionValue):
        pointer = c_void_p()
        with NativeOptions(options, log) as native:
            _abi.check(_lib.hvd_driver_create, native, byref(pointer))
        self._handle = Native(pointer.value, _lib.hvd_driver_destroy)
        close_at_exit(self)
        if command is not None:
            if not command or isinstance(command, str):
                raise InvalidError("command: expected a list of at least the program")
            extra = _strings([f"{name}={value}" for name, value in (environment or {}).items()])
            _abi.check(_lib.hvd_driver_set_command, self._handle.pointer, _strings(command), extra)
        if discover is not None:
            _abi.check(_lib.hvd_driver_set_discovery, self._handle.pointer, _discover,
                       _callbacks.add(discover), _forget)
        if launcher is not None:
            _abi.check(_lib.hvd_driver_set_launcher, self._handle.pointer, _start, _stop,
                       _callbacks.add(launcher), _forget)
        if output is not None:
            _abi.check(_lib.hvd_driver_set_output, self._handle.pointer, _output, _callbacks.add(output),
                       _forget)

    def start(self) -> None:
        """Listening, discovery and workers begin."""
        _abi.check(_lib.hvd_driver_start, self._handle.pointer)

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the job has succeeded and every worker is gone; JobFailedError says why it failed.

        WaitTimeoutError: it goes on. Ctrl-C is seen.
        """
        left = None if timeout is None else _abi.nanoseconds(timeout)
        while True:
            piece = _SLICE_NS if left is None else min(_SLICE_NS, left)
            try:
                return _abi.check(_lib.hvd_driver_wait, self._handle.pointer, piece)
            except HvdError as error:
                if error.status != TIMEOUT:
                    raise
                if left is not None:
                    left -= piece
                    if left <= 0:
                        raise

    def stop(self, reason: str = "stopped by the program") -> None:
        """Ends the job, from any thread; wait tells when all are gone. Again: kills at once what is left."""
        _abi.check(_lib.hvd_driver_stop, self._handle.pointer, _abi.text(reason, "reason"))

    def worker_exited(self, worker: int, exit_status: int) -> None:
        """For a launcher: exit_status is 0..255, or 256 + the signal's number."""
        _abi.check(_lib.hvd_driver_worker_exited, self._handle.pointer, worker, exit_status)

    def status(self) -> DriverStatus:
        raw = _abi.DriverStatus()
        _abi.check(_lib.hvd_driver_get_status, self._handle.pointer, byref(raw))
        plain = plain_of(DriverStatus, raw)
        object.__setattr__(plain, "phase", Phase(plain.phase))
        return plain

    def describe(self, format: Format = Format.TEXT) -> str:
        """All that is known of the job: hosts, workers, generations and their recoveries, goodput. No secrets
        are in it."""
        text = c_void_p()
        _abi.check(_lib.hvd_driver_describe, self._handle.pointer, Format(format), byref(text))
        return _owned(text)

    def drain(self, host: str, *, timeout: float | None = None,
              reason: str = "drained by the program") -> None:
        """The host's workers leave at their next commit, at most within option leave_timeout, and it gets no
        others."""
        left = 0 if timeout is None else _abi.nanoseconds(timeout)
        _abi.check(_lib.hvd_driver_drain, self._handle.pointer, _abi.text(host, "host"), left,
                   _abi.text(reason, "reason"))

    def undrain(self, host: str) -> None:
        """The host may be used again."""
        _abi.check(_lib.hvd_driver_undrain, self._handle.pointer, _abi.text(host, "host"))

    def scale(self, size: int) -> None:
        """The most workers from now on, from min_np to max_np."""
        _abi.check(_lib.hvd_driver_scale, self._handle.pointer, _abi.integer(size, 32, "size"))

    def close(self) -> None:
        """Stops the job if it runs and frees the driver."""
        self._handle.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _at_exit(self) -> None:
        if not self._handle.closed and self._handle.ours:
            self.stop("the driver's process ends")
            self._handle.close()


def _owned(text: c_void_p) -> str:
    """A text that the library gives away."""
    try:
        return string_at(text).decode("utf-8", "replace")
    finally:
        _lib.hvd_free(text)


def command(verb: str, argument: str = "", *, timeout: float | None = None, log: LogCallback | None = None,
            **options: OptionValue) -> str:
    """Asks a driver that runs elsewhere as its operator, as hvdrun ctl does: command("status",
    address_file="job.addr").

    Options address_file, or driver and secret, name it; verb "help" lists the verbs. Waits 10 seconds at
    most.
    """
    text = c_void_p()
    left = 0 if timeout is None else _abi.nanoseconds(timeout)
    with NativeOptions(options, log) as native:
        _abi.check(_lib.hvd_driver_command, native, _abi.text(verb, "verb"), _abi.text(argument, "argument"),
                   left, byref(text))
    return _owned(text)


def run(command: Sequence[str], *, timeout: float | None = None, **options) -> None:
    """A whole job: Driver(command, **options), start, wait, close."""
    with Driver(command, **options) as driver:
        driver.start()
        driver.wait(timeout)


def main() -> None:
    """The command hvdrun, as the package installs it: the library's own, with this package's modules."""
    program = hvdrun()
    try:
        os.execvp(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{program}: {error.strerror}")


if __name__ == "__main__":
    main()
