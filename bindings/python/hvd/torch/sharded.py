"""What fully_shard deals out among the ranks, as shards of a state: each rank commits its own part alone."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
import torch.distributed as dist

from .. import _default as plain
from ..elastic.shards import Shard
from ..errors import InvalidError
from ._values import flat, put

if TYPE_CHECKING:
    from .elastic import TorchState

Made = tuple[torch.nn.Module, torch.optim.Optimizer]


@contextmanager
def _stand_in(rank: int, size: int) -> Iterator[None]:
    """A default group in which nothing is sent, if there is none yet. What is made in it has the shapes that
    this rank would have. Random numbers are drawn anew afterwards."""
    if dist.is_initialized():
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # which registers backend "fake"

    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _names(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Of the optimizer's parameters, by their identity."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise InvalidError(f"the optimizer's parameter {index} of shape {tuple(parameter.shape)} is not "
                                   "one of the module's: expected what make() gives to belong together")
    return names


def _walk(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """All that they hold, in the same order on all ranks. The module's state_dict() comes first: it has FSDP
    put back what it had gathered."""
    for name, value in module.state_dict().items():
        yield f"model.{name}", value
    names = _names(module, optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                yield f"optimizer.{names[id(parameter)]}.{name}", value


def _fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Has the optimizer make its state, as its first step does. What the step writes is of no use."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


@cache
def _dtensor() -> tuple[Any, tuple[Any, ...]]:
    """The class of what is dealt out, and the placements of what is dealt out by rows."""
    from torch.distributed.tensor import DTensor, Shard as Rows

    return DTensor, (Rows(0),)


def _is_dealt(value: Any) -> bool:
    return isinstance(value, _dtensor()[0]) and any(not place.is_replicate() for place in value.placements)


def _whole(value: Any) -> Any:
    """In host memory. Collective for what is dealt out."""
    if isinstance(value, _dtensor()[0]):
        value = value.full_tensor()
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _rows(shape: tuple[int, ...], unit: int, rank: int, size: int) -> tuple[int, int]:
    """The first element and the number of elements of a rank's rows, as torch.chunk deals them out."""
    elements = unit
    for extent in shape:
        elements *= extent
    row, rows = elements // shape[0], -(-shape[0] // size)
    begin, end = (min(place * rows, shape[0]) for place in (rank, rank + 1))
    return begin * row, (end - begin) * row


class Sharded:
    """What fully_shard has dealt out among the ranks, as an attribute of a TorchState: each rank commits its
    own part, with copies on other ranks, and each generation deals all of it out anew.

        shards = hvd.torch.elastic.Sharded(make)  # make() -> (module, optimizer), sharded among the group there is
        state = hvd.torch.elastic.TorchState(shards=shards, step=0)

        @hvd.elastic.run
        def train(state):
            with group:
                module, optimizer = shards.deal()

    Parameters that are DTensors, and what the optimizer keeps for them, are shards of the state
    (State.add_shard). With one copy, commits hold this rank's part twice in host memory, and as much of the
    rank whose copy it holds. `copies` and `parity` are those of add_shard. Buffers, the optimizer's numbers
    and its groups' options are held by all ranks. All ranks commit at once.

    make() is called once more when the state gets the attribute, in a stand-in group of as many ranks, to
    learn keys and shapes: a worker that joins needs them before it has a group. The optimizer makes one step
    there. A commit takes rows in host memory where they are, so a hidden one reads them until the optimizer's
    next step. Parts on a device are copied to the host first. Parts that are not rows (a second dimension of
    the mesh, columns) are gathered first, one tensor at a time.
    """

    def __init__(self, make: Callable[[], Made], *, copies: int | None = None, parity: int | None = None):
        self._make = make
        self._kept = {"copies": copies, "parity": parity}
        self._shards: dict[str, Shard] = {}
        self._state: Callable[[], TorchState | None] = lambda: None  # whose attribute `_name` it is
        self._name = ""
        self._rest: dict[str, Any] | None = None  # what all ranks hold alike; None: nothing was committed
        self._dealt: Made | None = None
        self._copied: list[tuple[str, torch.Tensor]] = []  # what a hidden commit reads later, by key
        self._mesh: tuple[Any, bool] = None, False  # the one looked at last, and whether it is of all ranks

    def _register(self, state: TorchState, name: str, rank: int, size: int) -> None:
        """Once, by the state whose attribute `name` it becomes."""
        self._state, self._name = weakref.ref(state), name
        self._shards, self._rest, self._dealt, self._copied, self._mesh = {}, None, None, [], (None, False)
        with _stand_in(rank, size):
            module, optimizer = self._make()
            _fill_state(optimizer)
            layout = [(key, tuple(value.shape), value.dtype) for key, value in _walk(module, optimizer)
                      if _is_dealt(value) and value.ndim and value.numel()]
            del module, optimizer
        for key, shape, dtype in layout:
            like = flat(torch.zeros(1, dtype=dtype))
            elements = torch.Size(shape).numel() * like.numel()
            self._shards[key] = state.add_shard(f"{name}.{key}", elements,
                                                allocate=partial(torch.zeros, dtype=like.dtype),
                                                split=partial(_rows, shape, like.numel()), **self._kept)

    # ---- between generations ----

    def deal(self) -> Made:
        """The module and optimizer of this generation's ranks, with what was committed, restored or synced
        last."""
        module, optimizer = self._make()
        if self._rest is not None:
            self._set_apart(module, optimizer)
            self._put_all(module, optimizer, self._rest)
        self._dealt = module, optimizer
        if (state := self._state()) is not None:
            state._hook(self._name, optimizer)
        return self._dealt

    def _set_apart(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """What make() gives once more is written before it is filled: what comes back must be elsewhere."""
        for key, value in _walk(module, optimizer):
            rows = self._rows_of(value) if key in self._shards else None
            if rows is not None and self._is_lent(key, rows):
                self._lend(key, self._shards[key].array.clone())

    def _put_all(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer,
                 rest: dict[str, Any]) -> None:
        values, names = rest["values"], _names(module, optimizer)
        if any(key.startswith("optimizer.") for key in values):
            _fill_state(optimizer)
        extra = {}
        for key, value in _walk(module, optimizer):
            if key in values and key not in self._shards:
                if isinstance(value, torch.Tensor):
                    _put_whole(value, values[key])
                elif key.startswith("model."):
                    extra[key.removeprefix("model.")] = values[key]
            elif key in values:
                self._put_part(key, value)
        if extra:
            module.load_state_dict(extra, strict=False)
        for group, options in zip(optimizer.param_groups, rest["groups"]):
            group.update({key: value for key, value in options.items() if key != "params"})
        _put_numbers(optimizer, names, values)

    def _put_part(self, key: str, value: torch.Tensor) -> None:
        rows = self._rows_of(value)
        if rows is not None:
            put(rows, self._shards[key].array)
            return
        whole = plain.allgather(self._shards[key].array, name=f"torch shard {key}")
        _put_whole(value, whole.view(value.dtype).view(value.shape))

    # ---- commits ----

    def _store(self) -> None:
        """Has the next commit take this rank's part. Every rank calls it."""
        if self._dealt is None:
            return
        module, optimizer = self._dealt
        values: dict[str, Any] = {}
        self._copied = []
        for key, value in _walk(module, optimizer):
            if key in self._shards:
                values[key] = None
                self._take(key, value)
            else:
                values[key] = _whole(value)
        self._rest = {"values": values, "groups": _groups(module, optimizer)}

    def _take(self, key: str, value: torch.Tensor) -> None:
        shard, rows = self._shards[key], self._rows_of(value)
        is_there = rows is not None and self._is_lent(key, rows)
        if not is_there:
            mine = flat(_whole(value))[shard.offset:shard.offset + len(shard)] if rows is None else flat(rows)
            if mine.numel() != len(shard) or mine.dtype != shard.array.dtype:
                raise InvalidError(
                    f"{key!r} has {mine.numel()} elements of {mine.dtype} here: expected {len(shard)} of "
                    f"{shard.array.dtype}, as make() gave when the state was made")
            if rows is None or rows.is_cuda or not rows.is_contiguous():
                shard.array.copy_(mine)
                return
            self._lend(key, mine)
        self._copied.append((f"{self._name}.{key}", value))

    def _rows_of(self, value: Any) -> torch.Tensor | None:
        """This rank's, if each rank of the job has its rows, one rank after the other: FSDP2's way."""
        dtensor, rows = _dtensor()
        if not isinstance(value, dtensor) or value.placements != rows:
            return None
        mesh = value.device_mesh
        if mesh is not self._mesh[0]:  # which takes a while
            self._mesh = mesh, mesh.mesh.tolist() == list(range(dist.get_world_size()))
        with torch.no_grad():
            return value.to_local() if self._mesh[1] else None

    def _is_lent(self, key: str, rows: torch.Tensor) -> bool:
        """Whether the key's memory is what they lie in."""
        array = self._shards[key].array
        return rows.data_ptr() == array.data_ptr() and rows.nbytes == array.nbytes and rows.is_contiguous()

    def _lend(self, key: str, rows: torch.Tensor) -> None:
        """The key's memory is where the rows lie: nothing is copied but by the commit."""
        state = self._state()
        assert state is not None
        state.set_array(f"{self._name}.{key}", rows)

    def _put(self, rest: dict[str, Any] | None) -> None:
        """For deal(): the group may be a lost one when this is called."""
        self._rest = rest

    # ---- a program's own checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The whole, in host memory, in the form of torch.distributed.checkpoint's get_state_dict.

        Every rank calls it, after deal()."""
        if self._dealt is None:
            raise InvalidError("state_dict() before deal(): expected a module that was dealt out")
        module, optimizer = self._dealt
        whole = {key: _whole(value) for key, value in _walk(module, optimizer)}
        names = _names(module, optimizer)
        state = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                if held := optimizer.state.get(parameter):
                    state[name] = {key: whole[f"optimizer.{name}.{key}"] for key in held}
        model = {key.removeprefix("model."): whole[key] for key in whole if key.startswith("model.")}
        return {"model": model, "optimizer": {"state": state, "param_groups": _groups(module, optimizer)}}

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Takes what state_dict() gave, for the next deal(): before the run loop, or in State.on_lost().

        No other rank need call it."""
        found = {f"model.{key}": value for key, value in whole["model"].items()}
        for name, held in whole["optimizer"]["state"].items():
            found.update({f"optimizer.{name}.{key}": value for key, value in held.items()})
        values: dict[str, Any] = {}
        for key, value in found.items():
            shard = self._shards.get(key)
            values[key] = value if shard is None else None
            if shard is None:
                continue
            all_of_it = flat(value)
            if all_of_it.numel() != shard.elements:
                raise InvalidError(f"load_state_dict: {key!r} of shape {tuple(value.shape)} has "
                                   f"{all_of_it.numel()} elements: expected {shard.elements}")
            shard.array.copy_(all_of_it[shard.offset:shard.offset + len(shard)])
        self._rest, self._dealt = {"values": values, "groups": whole["optimizer"]["param_groups"]}, None


def _groups(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    names = _names(module, optimizer)
    return [{
        key: [names[id(parameter)] for parameter in value] if key == "params" else _whole(value)
        for key, value in group.items()
    } for group in optimizer.param_groups]


def _put_numbers(optimizer: torch.optim.Optimizer, names: dict[int, str], values: dict[str, Any]) -> None:
    """What the optimizer keeps for each parameter is no more than what it had, and its numbers are those."""
    wanted: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        owner, _, name = key.rpartition(".")
        wanted.setdefault(owner, {})[name] = value
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            had, held = wanted.get(f"optimizer.{names[id(parameter)]}", {}), optimizer.state.get(parameter, {})
            for name in [name for name in held if name not in had]:
                del held[name]
            held.update({
                name: value
                for name, value in had.items() if not isinstance(held.get(name), torch.Tensor)
            })
            if not held:
                optimizer.state.pop(parameter, None)


def _put_whole(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """What all ranks have in whole, into what this one has of it."""
    from torch.distributed.tensor import DTensor, Replicate

    with torch.no_grad():
        if not isinstance(tensor, DTensor):
            tensor.copy_(whole)
            return
        mesh = tensor.device_mesh
        everywhere = DTensor.from_local(whole.to(tensor.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
        tensor.to_local().copy_(everywhere.redistribute(placements=tensor.placements).to_local())
