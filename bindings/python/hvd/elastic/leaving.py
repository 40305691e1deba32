"""A signal that makes this worker leave its job in peace."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Callable

from .. import _default
from ..context import Context
from ..errors import HvdError


def leave_on_signal(number: int = signal.SIGTERM, timeout: float | None = None,
                    context: Context | None = None) -> Callable[[], None]:
    """From here on the signal makes this worker leave (Context.leave), also while the main thread is in a
    collective.

    Call it in the main thread, after hvd.init. Other signals keep their handlers, and a wakeup descriptor
    that was set before (asyncio sets one) gets what it got. Returns a function that undoes it all.
    """
    leaving = context or _default.context()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    # Python runs handlers in the main thread alone, which may be in C for long: what tells us is the byte
    # that the interpreter's own handler writes at once.
    handler_before = signal.signal(number, lambda *_: None)
    try:
        fd_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    except BaseException:
        signal.signal(number, handler_before)
        reader.close()
        writer.close()
        raise

    def listen() -> None:
        while numbers := reader.recv(64):
            if fd_before >= 0:
                try:
                    os.write(fd_before, numbers)
                except OSError:
                    pass  # full, or closed meanwhile: nobody waits for it
            if number in numbers:
                try:
                    leaving.leave(timeout)
                except HvdError:
                    pass  # it is over already

    thread = threading.Thread(target=listen, name="hvd-leave", daemon=True)
    thread.start()

    def undo() -> None:
        signal.set_wakeup_fd(fd_before)
        signal.signal(number, handler_before)
        writer.close()
        thread.join(5)
        reader.close()

    return undo
