"""What an operation within a compiled program raises comes out of JAX as JAX's error: here it becomes hvd's again."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Iterator

import jax
from jax._src import dispatch

from ..errors import BY_STATUS, HvdError

_MARK = re.compile(r"(HVD_\w+: .*?) ?\[hvd (\d+) (-?\d+) (\d+)\]", re.S)


def translated(problem: BaseException) -> HvdError | None:
    """The library's exception that this one carries, if it does."""
    found = _MARK.search(str(problem))
    if found is None:
        return None
    status = int(found.group(2))
    return BY_STATUS.get(status, HvdError)(found.group(1).strip(), status=status, rank=int(found.group(3)),
                                           generation=int(found.group(4)))


def forget_programs() -> None:
    """A program that failed hands its failure on to the next one in order: after it, order begins anew."""
    dispatch.runtime_tokens.clear()


@contextmanager
def errors() -> Iterator[None]:
    """`with hvd.jax.errors():` waits for the programs that are under way, and raises what failed in them as hvd's."""
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as problem:
        error = translated(problem)
        forget_programs()
        if error is None:
            raise
        raise error from problem
