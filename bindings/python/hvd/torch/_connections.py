"""Ends the connections of torch's Gloo groups: its abort() does nothing, and whoever waits for a rank that
lives, but has learned of a loss, would wait until the time-out."""

from __future__ import annotations

import os
import socket
import sys
from typing import Iterator


def _sockets() -> Iterator[socket.socket]:
    """Of TCP, of this process, as duplicates."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def listeners() -> set[int]:
    """The ports that this process listens on. Linux; nothing elsewhere."""
    if not os.path.isdir("/proc/self/fd"):
        return set()
    ports = set()
    for found in _sockets():
        try:
            if _listens(found):
                ports.add(found.getsockname()[1])
        except OSError:
            continue
    return ports


def published(value: bytes, ports: set[int]) -> set[int]:
    """Which of these ports are in what a group tells the others: Gloo's addresses are the kernel's."""
    families = [family.to_bytes(2, sys.byteorder) for family in (socket.AF_INET, socket.AF_INET6)]
    return {port for port in ports if any(family + port.to_bytes(2, "big") in value for family in families)}


def cut(ports: set[int]) -> int:
    """Shuts down what came in at these ports, if this process listens on them; how many that were.

    Every connection among Gloo's ranks has come in at one of its ends, so if each rank does this all waits
    end.
    """
    ports = listeners() & ports
    count = 0
    for found in _sockets() if ports else ():
        try:
            if not _listens(found) and found.getsockname()[1] in ports:
                found.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:  # it is closed already
            continue
    return count
