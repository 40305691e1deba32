"""What Horovod's scripts ask for besides: which transports there are and are in use, and functions as jobs.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from . import _default
from .context import Context
from .errors import InvalidError
from .facts import BackendReport, backends


@functools.lru_cache(maxsize=1)
def _reports() -> dict[str, BackendReport]:
    return {report.name: report for report in backends()}


def _usable(*names: str) -> bool:
    return any(name in _reports() and _reports()[name].usable for name in names)


def mpi_built() -> bool:
    """Whether a backend for MPI is there and usable."""
    return _usable("mpi", "mpich")


def gloo_built() -> bool:
    """Whether a backend is there that needs no MPI: Gloo's, or the library's own."""
    return any(report.usable and report.name not in ("mpi", "mpich", "nccl")
               for report in _reports().values())


def nccl_built() -> int:
    """NCCL's version as a number (22809 for 2.28.9) if its backend is usable, else 0."""
    if not _usable("nccl"):
        return 0
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", _reports()["nccl"].version)
    return 1 if match is None else int(match[1]) * 10000 + int(match[2]) * 100 + int(match[3])


def cuda_built() -> bool:
    """Whether a usable backend serves CUDA's memory."""
    return any(report.usable and "cuda" in report.memories for report in _reports().values())


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def mpi_enabled() -> bool:
    """Whether MPI carries host memory's operations in this context."""
    return _default.backend().name in ("mpi", "mpich")


def gloo_enabled() -> bool:
    return not mpi_enabled()


def mpi_threads_supported() -> bool:
    """Whether the program may use MPI beside the library, from any thread: where MPI is in use, it is so."""
    return mpi_enabled()


def is_homogeneous() -> bool:
    """Whether every host has the same number of workers."""
    sizes = _default.allgather_object(_default.local_size())
    return len(set(sizes)) == 1


def check_num_rank_power_of_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


_PLACE = {
    "HOROVOD_RANK": "rank", "HOROVOD_SIZE": "size", "HOROVOD_LOCAL_RANK": "local_rank",
    "HOROVOD_LOCAL_SIZE": "local_size", "HOROVOD_CROSS_RANK": "cross_rank", "HOROVOD_CROSS_SIZE": "cross_size"
}


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:  # nor "nan"
        raise ValueError
    return seconds


def _level(text: str) -> str:
    return {"trace": "trace", "debug": "debug", "info": "info", "warning": "warning", "error": "error",
            "fatal": "error"}[text.lower()]


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


# Horovod's variables that mean here what they mean there: the option, how its value is read, and what is
# expected.
_READ: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold", _number, "a number of bytes"),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("stall_warning", _seconds, "a number of seconds"),
    "HOROVOD_LOG_LEVEL": ("log_level", _level, "trace, debug, info, warning, error or fatal"),
    "HOROVOD_GLOO_IFACE": ("interface", str, "a network interface"),
}
# Options that hvd.init() sets unless it is told otherwise. Package `horovod` adds to them.
DEFAULTS: dict[str, Any] = {"reset_before_sync": True}
_LAUNCHERS = {"HOROVOD_START_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT"}  # which horovodrun reads
_SET = {*_PLACE, "HOROVOD_ELASTIC", "HOROVOD_HOSTNAME"}


def options_of(environment: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
    """The options of hvd.init() that make it Horovod's, and those that Horovod's variables set; HVD_...
    variables come first.

    One line names the variables that have no effect. InvalidError: a value that can't be meant.
    """
    found: dict[str, Any] = dict(DEFAULTS)
    for name, (option, read, expected) in _READ.items():
        if environment.get(name):
            try:
                found[option] = read(environment[name])
            except (ValueError, KeyError):
                raise InvalidError(f"{name}={environment[name]!r}: expected {expected}") from None
    if environment.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        found["stall_warning"] = 0.0
    known = {*_READ, *_SET, *_LAUNCHERS, "HOROVOD_TIMELINE", "HOROVOD_STALL_CHECK_DISABLE"}
    idle = sorted(name for name in environment if name.startswith("HOROVOD_") and name not in known)
    if idle:
        say(f"{', '.join(idle)}: these variables of Horovod's have no effect; "
            "docs/options.md has this library's options")
    return {option: value for option, value in found.items() if f"HVD_{option.upper()}" not in environment}


def begin_timeline(context: Context) -> None:
    """HOROVOD_TIMELINE=file: rank 0 writes file.<worker>.json. DYNAMIC: when start_timeline() is called."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC" and "HVD_TIMELINE" not in os.environ and context.rank() == 0:
        context.start_timeline(path)


def export_place(context: Context) -> None:
    """HOROVOD_RANK and the like as Horovod's launcher sets them, for what looks there and not at hvd.rank().
    """
    member = context.membership()
    os.environ.update({name: str(getattr(member, field)) for name, field in _PLACE.items()})
    if "HVD_DRIVER" in os.environ:  # the job's driver started it, and ranks may change
        os.environ.update(HOROVOD_ELASTIC="1", HOROVOD_HOSTNAME=os.environ.get("HVD_HOST", ""))


def run(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        np: int = 1, *, timeout: float | None = None, environment: Mapping[str, str] | None = None,
        executable: str | None = None, **options: Any) -> list[Any]:
    """function(*args, **kwargs) in `np` workers of a job of this machine; its results in rank order, as
    horovod.run.

    The function and what it gives travel by pickle, within a directory of this user's own; functions that
    pickle does not take need the package cloudpickle. `executable`: the Python of the workers; `options` are
    the driver's (min_np, max_np, hosts, ...). JobFailedError: as the driver says; the first exception of a
    worker is in its text.
    """
    if not callable(function):
        raise InvalidError(f"function: expected something to call, and not {type(function).__name__}")
    from . import driver

    try:
        import cloudpickle as by_value
    except ImportError:
        by_value = pickle  # type: ignore[assignment]
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hvd-run-") as directory:
        try:
            Path(directory, "call").write_bytes(by_value.dumps((function, tuple(args), dict(kwargs or {}))))
        except Exception as error:
            raise InvalidError(
                f"the function or its arguments can't be pickled ({error}); the package cloudpickle takes "
                "functions from anywhere") from error
        package = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([package, *sys.path])
        work = "import sys; from hvd._horovod import _work; _work(sys.argv[1])"
        driver.run([executable or sys.executable, "-c", work, directory], np=np, timeout=timeout,
                   environment={"PYTHONPATH": path, **(environment or {})},
                   **{"hosts": f"localhost:{options.get('max_np') or np}", **options})
        found = {int(file.suffix[1:]): file for file in Path(directory).glob("result.*")}
        return [pickle.loads(found[rank].read_bytes()) for rank in sorted(found)]


def _work(directory: str) -> None:
    """A worker of run()."""
    function, arguments, options = pickle.loads(Path(directory, "call").read_bytes())
    result = function(*arguments, **options)
    if not _default.is_initialized():
        _default.init()  # the rank is this job's, whether the function has asked for it or not
    rank = _default.rank()
    try:
        data = pickle.dumps(result)
    except Exception as error:
        raise InvalidError(
            f"rank {rank}: the result, {type(result).__name__}, can't be pickled: {error}") from error
    temporary = Path(directory, f"writing.{rank}")
    temporary.write_bytes(data)
    temporary.rename(Path(directory, f"result.{rank}"))
    _default.shutdown(keep_place=False)
