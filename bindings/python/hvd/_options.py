"""Options by keyword and the log: hvd_options in Python's words."""

from __future__ import annotations

from ctypes import byref, c_char_p, c_void_p
from typing import Callable, Union

from . import _abi
from . import _constants as c
from ._handles import Registry
from .errors import InvalidError

_lib = _abi.lib
OptionValue = Union[str, int, float, bool, None]
LogCallback = Callable[[int, str], None]

TRACE, DEBUG, INFO, WARNING, ERROR = c.LOG_TRACE, c.LOG_DEBUG, c.LOG_INFO, c.LOG_WARNING, c.LOG_ERROR
_logs = Registry()


def logger():
    import logging  # not above: importing the package needs none of it

    return logging.getLogger("hvd")


def to_logging() -> LogCallback:
    """Lines go to logging.getLogger("hvd")."""
    import logging

    own = logger()
    levels = {
        TRACE: 5, DEBUG: logging.DEBUG, INFO: logging.INFO, WARNING: logging.WARNING, ERROR: logging.ERROR
    }
    return lambda level, message: own.log(levels.get(level, logging.INFO), "%s", message)


@_abi.LogFn
def _log(userdata, level, message):
    try:
        _logs.get(userdata)(level, message.decode("utf-8", "replace"))
    except Exception:  # a log that fails must not disturb who logs
        pass


@_abi.DestroyFn
def _forget_log(userdata):
    _logs.remove(userdata)


class NativeOptions:
    """`with NativeOptions({...}, log) as pointer`: options for hvd_init and hvd_driver_create."""

    def __init__(self, options: dict[str, OptionValue], log: LogCallback | None = None):
        self._pointer = c_void_p()
        _abi.check(_lib.hvd_options_create, byref(self._pointer))
        try:
            for key, value in options.items():
                if value is not None:
                    self.set(key, value)
            number = _logs.add(log or to_logging())
            _abi.check(_lib.hvd_options_set_log, self._pointer, c.LOG_DEFAULT, _log, number, _forget_log)
        except BaseException:
            self.close()
            raise

    def set(self, key: str, value: OptionValue) -> None:
        name = _abi.text(key, "option")
        if isinstance(value, bool):
            _abi.check(_lib.hvd_options_set_bool, self._pointer, name, int(value))
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise InvalidError(f"option {key}: {value} is no 64-bit integer")
            _abi.check(_lib.hvd_options_set, self._pointer, name, str(value).encode())
        elif isinstance(value, float):  # seconds
            _abi.check(_lib.hvd_options_set, self._pointer, name, repr(value).encode())
        elif isinstance(value, str):
            _abi.check(_lib.hvd_options_set, self._pointer, name, _abi.text(value, f"option {key}"))
        else:
            raise InvalidError(
                f"option {key}: expected str, int, float or bool, and not {type(value).__name__}")

    def get(self, key: str) -> str:
        text = c_char_p()
        _abi.check(_lib.hvd_options_get, self._pointer, _abi.text(key, "option"), byref(text))
        return (text.value or b"").decode()

    def close(self) -> None:
        pointer, self._pointer = self._pointer, c_void_p()
        _lib.hvd_options_destroy(pointer)

    def __enter__(self) -> c_void_p:
        return self._pointer

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_options() -> str:
    """One line per option: key, type, default, environment variable, meaning."""
    return _lib.hvd_options_describe().decode()
