"""A program as a user would type it: `mypy --strict` takes it, and the types that it asserts. Never run."""

from __future__ import annotations

from typing import Any

import hvd
import hvd.elastic


def callback(event: hvd.Event) -> None:
    print(event.kind is hvd.EventKind.PEER_LOST, event.message)


hvd.init()
rank: int = hvd.rank()
total: Any = hvd.allreduce([1.0, 2.0], name="total", op=hvd.Sum)
pending: hvd.Handle = hvd.allreduce_async([1.0], name="later", op=hvd.Average)
pending.wait(timeout=1.0)

state = hvd.elastic.ObjectState(epoch=0, batch=0)


@hvd.elastic.run
def train(state: hvd.elastic.ObjectState, rate: float) -> int:
    """What a state was given are attributes of any type."""
    while state.epoch < 3:
        state.epoch += 1
        state.commit()
    return int(state.epoch)


epochs: int = train(state, 0.5)

with hvd.Context(backend="tcp") as context:
    number: int = context.register_listener(callback, hvd.EventKind.PEER_LOST)
    context.remove_listener(number)
    place: hvd.Membership = context.membership()
    print(place.size, context.broadcast([1.0], root_rank=0, name="first"), context.rank())
    members: hvd.ProcessSet = context.add_process_set([0])
    try:
        context.barrier(process_set=members)
    except (hvd.HorovodInternalError, hvd.MismatchError) as error:
        print(error)
