"""The compiled handlers behind hvd.jax: built once with the machine's compiler, else Python callbacks do
their work."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax


from .. import _default
from .._abi import LIBRARY_PATH, lib

HERE = Path(__file__).resolve().parent
TARGETS = {"hvd_collective": "hvd_jax_collective", "hvd_allgather_gradient": "hvd_jax_allgather_gradient",
           "hvd_place": "hvd_jax_place"}


class _Library(ctypes.Structure):
    """Library of handlers.cc."""

    _fields_ = [(name, ctypes.c_void_p)
                for name in ("submit", "wait", "output", "received", "destroy", "membership", "status_name")]


def _header_directory() -> Path | None:
    """Where hvd/hvd.h is: in a wheel, beside the library's installation, in a checkout."""
    places = [
        HERE.parent / "_native" / "include",
        *(parent / "include" for parent in Path(LIBRARY_PATH).parents[1:3]),
        *(parent / "include" for parent in HERE.parents)
    ]
    return next((place for place in places if (place / "hvd" / "hvd.h").exists()), None)


def _cache_directory() -> Path:
    """One's own, that nobody else may write to: what lies there is loaded."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{base} may be written to by others: expected a directory of one's own, mode 0700")
    return base


def _build() -> Path:
    """The shared object, from the cache if the same sources were compiled before."""
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    headers = _header_directory()
    if headers is None:
        raise OSError("hvd/hvd.h is not to be found")
    includes = jax.ffi.include_dir()
    digest = hashlib.sha256()
    for source in (HERE / "handlers.cc", headers / "hvd" / "hvd.h",
                   *sorted(Path(includes).glob("xla/ffi/api/*.h"))):
        digest.update(source.read_bytes())
    result = _cache_directory() / f"jax-{digest.hexdigest()[:20]}.so"
    if result.exists():
        return result
    if compiler is None:
        raise OSError("there is no C++ compiler (c++, g++, clang++, or what CXX names)")
    descriptor, temporary = tempfile.mkstemp(".so", "building-", result.parent)
    os.close(descriptor)
    command = [
        compiler, "-std=c++17", "-O2", "-DNDEBUG", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{headers}",
        "-isystem", includes,
        str(HERE / "handlers.cc"), "-o", temporary
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise OSError(
                f"{compiler}: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else 'failed'}")
        os.replace(temporary, result)  # several workers of a host may build at once
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return result


class Native:
    """Which way operations go, and why."""

    def __init__(self) -> None:
        self.handlers: ctypes.CDLL | None = None
        self.reason = ""
        self._context: Any = None
        self._lock = threading.Lock()
        if os.environ.get("HVD_JAX_FFI", "1") == "0":
            self.reason = "HVD_JAX_FFI=0"
            return
        try:
            self.handlers = ctypes.CDLL(str(_build()))
        except (OSError, subprocess.SubprocessError) as error:
            self.reason = str(error)
            return
        for target, symbol in TARGETS.items():
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(self.handlers, symbol)),
                                        platform="cpu")
        self.handlers.hvd_jax_set_context.argtypes = [ctypes.POINTER(_Library), ctypes.c_void_p]
        self.handlers.hvd_jax_set_context.restype = None

    def use_context(self) -> Any:
        """Gives the handlers the context of hvd.init."""
        context = _default.context()
        if self.handlers is None or self._context is context:
            return context
        with self._lock:
            table = _Library(*[ctypes.cast(function, ctypes.c_void_p).value for function in (
                lib.hvd_submit, lib.hvd_op_wait, lib.hvd_op_get_output, lib.hvd_op_get_received_splits,
                lib.hvd_op_destroy, lib.hvd_get_membership, lib.hvd_status_name)])
            self.handlers.hvd_jax_set_context(ctypes.byref(table), context._handle.pointer)
            self._context = context
            context._before_close.append(self.forget_context)
        return context

    def forget_context(self) -> None:
        """Before it is freed: returns when no handler uses it."""
        with self._lock:
            if self.handlers is not None and self._context is not None:
                self.handlers.hvd_jax_set_context(None, None)
            self._context = None


native = Native()


def implementation() -> tuple[str, str]:
    """("ffi", "") or ("callback", why the handlers could not be built)."""
    return ("ffi", "") if native.handlers is not None else ("callback", native.reason)


__all__ = ["implementation", "native"]
