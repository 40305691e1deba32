"""What an operation within a compiled program raises comes out of JAX as JAX's error: here it becomes hvd's
again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import jax
from jax._src import dispatch

from ..errors import marked


def forget_programs() -> None:
    """A program that failed hands its failure on to the next one in order: after it, order begins anew."""
    dispatch.runtime_tokens.clear()


@contextmanager
def errors() -> Iterator[None]:
    """`with hvd.jax.errors():` waits for the programs that are under way, and raises what failed in them as
    hvd's."""
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as problem:
        error = marked(problem)
        forget_programs()
        if error is None:
            raise
        raise error from problem
