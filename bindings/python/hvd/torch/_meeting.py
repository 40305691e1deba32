"""A job among processes that torchrun, or anybody else, has started: they find each other by torch's own
store."""

from __future__ import annotations

import json
import os
import secrets
import socket
from typing import Any

from .. import _default as plain
from ..errors import HvdError, UnavailableError


def machine() -> str:
    """The same for two processes of one machine alone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def _invite(store: Any, size: int) -> dict[str, str]:
    """Where rank 0 will listen: on loopback if all are on its machine."""
    here = all(store.get(f"hvd/machine/{rank}").decode() == machine() for rank in range(1, size))
    host = "127.0.0.1" if here else os.environ.get("MASTER_ADDR") or socket.gethostname()
    return {
        "rendezvous": f"{host}:{_free_port('127.0.0.1' if here else '')}", "secret": secrets.token_hex(32)
    }


def meet(store: Any, rank: int, size: int, timeout: float, **options: Any) -> None:
    """hvd.init() as `rank` of `size`: in the job of hvdrun if it started this process, else in one of the
    store's ranks, which rank 0 serves. Whoever reads the store reads the job's secret: it is as private as
    torch's own addresses.
    """
    if os.environ.get("HVD_DRIVER"):
        plain.init()
        return
    if size == 1:
        plain.init(rank=0, size=1)
        return
    if rank:
        store.set(f"hvd/machine/{rank}", machine())
        invitation = json.loads(store.get("hvd/invitation"))
        if "failure" in invitation:
            raise UnavailableError(f"rank 0 could not begin the job: {invitation['failure']}")
    else:
        try:
            invitation = _invite(store, size)
        except (OSError, HvdError) as problem:
            store.set("hvd/invitation", json.dumps({"failure": str(problem)}))
            raise
        store.set("hvd/invitation", json.dumps(invitation))
    plain.init(rank=rank, size=size, elastic=False, init_timeout=timeout, **invitation, **options)
