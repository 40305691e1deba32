"""Finds libhvd.so and loads it: the one file of the C ABI that this package stands on."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Iterator

ABI = 1
"""HVD_ABI_VERSION that this package is written against: the number in libhvd.so.<ABI>."""
VERSION = (0, 2)
"""Oldest library, as (major, minor), that has everything this package calls."""

_NAME = f"libhvd.so.{ABI}"
_PACKAGE = Path(__file__).resolve().parent


class LibraryError(ImportError):
    """libhvd can't be loaded: every place that was looked at, and why it was of no use."""


def _build_trees() -> list[Path]:
    """lib directories of build trees of the checkout that this package lies in, newest first."""
    for parent in _PACKAGE.parents:
        if (parent / "include" / "hvd" / "hvd.h").exists():
            found = [*parent.glob(f"build*/lib/{_NAME}"), *parent.glob(f"build*/*/lib/{_NAME}")]
            return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def _pkg_config() -> Path | None:
    import subprocess

    try:
        answer = subprocess.run(["pkg-config", "--variable=libdir", "hvd"], capture_output=True, text=True,
                                timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    directory = answer.stdout.strip()
    return Path(directory) / _NAME if answer.returncode == 0 and directory else None


def candidates() -> Iterator[str]:
    """Where the library is looked for, in this order. HVD_LIBRARY (a file, or its directory) admits no other.

    What comes late costs time (pkg-config is a process), so that nothing is looked for before it is asked
    for.
    """
    chosen = os.environ.get("HVD_LIBRARY")
    if chosen:
        yield os.path.join(chosen, _NAME) if os.path.isdir(chosen) else chosen
        return
    yield from map(str, _PACKAGE.glob(f"_native/**/{_NAME}"))
    yield from map(str, _build_trees())
    installed = _pkg_config()
    if installed is not None:
        yield str(installed)
    yield _NAME  # ldconfig's cache and LD_LIBRARY_PATH


def _check_version(library: ctypes.CDLL, path: str) -> str | None:
    """Why the library is not one for this package; None if it is."""
    soname = re.search(r"libhvd\.so\.(\d+)", os.path.basename(os.path.realpath(path)))
    if soname and int(soname.group(1)) != ABI:
        return f"it has ABI version {soname.group(1)}; this package needs {ABI}"
    try:
        get_version = library.hvd_version
    except AttributeError:
        return "it is no libhvd: it has no function hvd_version"
    get_version.restype = ctypes.c_char_p
    get_version.argtypes = []
    version = (get_version() or b"").decode()
    match = re.match(r"(\d+)\.(\d+)\.", version)
    wanted = ".".join(map(str, VERSION))
    if match is None or int(match.group(1)) != VERSION[0] or int(match.group(2)) < VERSION[1]:
        return f"it is version {version or '(none)'}; this package needs {wanted} or a later {VERSION[0]}.x (ABI {ABI})"
    return None


class _DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


def _mode() -> int:
    """How to load it. Where a framework (TensorFlow) exports a TLS library of its own to the whole process,
    libhvd must look into its own dependencies first, or its calls to OpenSSL end up there."""
    process = ctypes.CDLL(None)
    info = _DlInfo()
    try:
        found = ctypes.cast(process.OpenSSL_version_num, ctypes.c_void_p)
        if not process.dladdr(found, ctypes.byref(info)):
            return ctypes.DEFAULT_MODE
    except AttributeError:
        return ctypes.DEFAULT_MODE
    own = os.path.basename(os.fsdecode(info.file or b"")).startswith("libcrypto.so.3")
    return ctypes.DEFAULT_MODE if own else ctypes.DEFAULT_MODE | os.RTLD_DEEPBIND


def load() -> tuple[ctypes.CDLL, str]:
    """The library and its file. LibraryError if none of the candidates will do."""
    reasons = []
    for path in candidates():
        if os.sep in path and not os.path.exists(path):
            reasons.append(f"  {path}: no such file")
            continue
        try:
            library = ctypes.CDLL(path, mode=_mode())
        except OSError as error:
            reasons.append(f"  {path}: {error}")
            continue
        why = _check_version(library, path)
        if why is None:
            return library, path
        reasons.append(f"  {path}: {why}")
    raise LibraryError("no usable libhvd found (HVD_LIBRARY can name its file):\n" + "\n".join(reasons))


def hvdrun() -> str:
    """Path of the launcher that belongs to the library, or "hvdrun" for the one in PATH."""
    from ._abi import LIBRARY_PATH

    if os.sep in LIBRARY_PATH:
        for parent in Path(
                LIBRARY_PATH).resolve().parents[1:3]:  # lib/libhvd.so.1, or lib/<architecture>/libhvd.so.1
            if (parent / "bin" / "hvdrun").exists():
                return str(parent / "bin" / "hvdrun")
    return "hvdrun"
