"""The library's sampler in the shape of Horovod's: it deals each sample out once an epoch, whoever comes and
goes."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Iterator, Sized

from .. import _abi
from .. import _constants as c
from .._default import context as default_context
from .._handles import Native
from ..context import Context
from ..errors import ClosedError, InvalidError
from ..facts import plain_of

_lib = _abi.lib
_EPOCH = 32  # in what hvd_sampler_save gives: where epoch and processed are
PADDINGS = {"none": c.PADDING_NONE, "repeat": c.PADDING_REPEAT, "drop": c.PADDING_DROP}


@dataclass(frozen=True)
class SamplerInfo:
    epoch: int
    samples: int
    batch_size: int
    processed: int
    remaining: int
    rounds: int


@dataclass(frozen=True)
class Batch:
    """One rank's part of a round: its samples, and how many all ranks have together."""

    indices: list[int]
    total: int
    epoch: int
    native: _abi.SamplerBatch


class ElasticSampler:
    """ElasticSampler(dataset): an iterable of this rank's indices of what is left of the epoch.

    `dataset` is anything with a length, or a number. All ranks take the epoch's order from the front, in
    rounds of batch_size samples a rank; what was processed is recorded in rounds, alike on every rank, and is
    part of a state (TorchState(sampler=sampler)). Give batch_size where it is known: recording then costs one
    call a batch. padding: "repeat" (every rank gets equally many, as in Horovod), "none" (each sample exactly
    once), "drop".
    """

    def __init__(self, dataset: Sized | int, shuffle: bool = True, seed: int = 0, *, batch_size: int = 1,
                 padding: str = "repeat", context: Context | None = None):
        if padding not in PADDINGS:
            raise InvalidError(f"padding {padding!r}: expected one of {', '.join(PADDINGS)}")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.batch_size = batch_size
        self._padding = padding
        self._context = context or default_context()
        samples = dataset if isinstance(dataset, int) else len(dataset)
        for what, value in (("samples", samples), ("batch_size", batch_size), ("seed", seed)):
            if not 0 <= value < 2**64:
                raise InvalidError(f"{what} is {value}: expected 0 to 2^64-1")
        options = _abi.SamplerOptions(samples=samples, batch_size=batch_size, seed=seed,
                                      in_order=int(not shuffle), padding=PADDINGS[padding])
        pointer = c_void_p()
        _abi.check(_lib.hvd_sampler_create, self._context._handle.pointer, byref(options), byref(pointer))
        self._handle = Native(pointer.value, _lib.hvd_sampler_destroy)
        self._room = (c_uint64 * batch_size)()

    # ---- rounds ----

    def next(self, after: Batch | None = None) -> Batch:
        """The first round that is not recorded, or the one that follows `after`. total 0: the epoch is over.
        """
        batch = _abi.SamplerBatch()
        _abi.check(_lib.hvd_sampler_next, self._handle.pointer,
                   None if after is None else byref(after.native), self._room, self.batch_size, byref(batch))
        return Batch(self._room[: batch.count], batch.total, batch.epoch, batch)

    def record(self, batch: Batch) -> None:
        """The round was processed. Every rank calls it at the same point, one without samples too."""
        _abi.check(_lib.hvd_sampler_record, self._handle.pointer, byref(batch.native))

    def batches(self) -> Iterator[Batch]:
        """The rounds that are left in this epoch; the caller records each."""
        batch = self.next()
        while batch.total:
            yield batch
            batch = self.next()

    # ---- as in Horovod ----

    def __iter__(self) -> Iterator[int]:
        batch = self.next()
        while batch.total:
            yield from batch.indices
            batch = self.next(batch)

    def __len__(self) -> int:
        """Indices that an iteration begun now gives on this rank."""
        info, size, rank = self.info(), self._context.size(), self._context.rank()
        shares, rest = divmod(info.remaining, size)
        if self._padding == "repeat":
            return shares + (rest > 0)
        return shares + (rank < rest if self._padding == "none" else 0)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Another batch, of batch_size samples on each rank, was processed. Each call counts, whatever its
        index: in Horovod's scripts it may begin anew or go on after a reset. An epoch's last batch may have
        fewer samples."""
        if batch_size >= len(self):
            for batch in self.batches():
                self.record(batch)
            return
        if batch_size % self.batch_size:
            raise InvalidError(
                f"record_batch: batches of {batch_size} samples are no multiple of the sampler's "
                f"batch_size {self.batch_size}, and {len(self)} are left")
        for _ in range(batch_size // self.batch_size):
            self.record(self.next())

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch; the one that it is in changes nothing."""
        _abi.check(_lib.hvd_sampler_set_epoch, self._handle.pointer, epoch)

    def reset(self) -> None:
        """Nothing to do: rank and size are asked for at each call. An iteration must begin anew."""

    @property
    def epoch(self) -> int:
        return self.info().epoch

    def _load_horovods(self, state: dict[str, Any]) -> None:
        if not {"epoch", "processed_num"} <= set(state):
            raise InvalidError(
                f"state of a sampler with {', '.join(map(str, state)) or 'nothing'}: expected 'saved', or Horovod's 'epoch' "
                "and 'processed_num'")
        epoch, processed = (_abi.integer(state[key], 64, key) for key in ("epoch", "processed_num"))
        if processed < 0 or epoch < 0:
            raise InvalidError(f"state of a sampler: epoch {epoch}, processed_num {processed}")
        saved = bytearray(self._save())
        # Horovod counts an epoch's last batch in full: more than there are.
        struct.pack_into("<QQ", saved, _EPOCH, epoch, min(processed, self.info().samples))
        self._load(bytes(saved))

    @property
    def processed_num(self) -> int:
        """Samples that were processed in this epoch, by all ranks."""
        return self.info().processed

    @property
    def num_replicas(self) -> int:
        return self._context.size()

    @property
    def rank(self) -> int:
        return self._context.rank()

    @property
    def num_samples(self) -> int:
        """Of what is left of the epoch, this rank's."""
        return len(self)

    @property
    def total_size(self) -> int:
        return len(self) * self.num_replicas

    def info(self) -> SamplerInfo:
        raw = _abi.SamplerInformation()
        _abi.check(_lib.hvd_sampler_get_info, self._handle.pointer, byref(raw))
        return plain_of(SamplerInfo, raw)

    def _save(self) -> bytes:
        room = ctypes.create_string_buffer(_abi.SAMPLER_SAVED_BYTES)
        _abi.check(_lib.hvd_sampler_save, self._handle.pointer, room, len(room))
        return room.raw

    def _load(self, saved: bytes) -> None:
        _abi.check(_lib.hvd_sampler_load, self._handle.pointer,
                   ctypes.create_string_buffer(saved, len(saved)), len(saved))

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint of the program's own; the same on every rank."""
        saved = self._save()
        try:
            info = self.info()
        except ClosedError:  # after shutdown: what Horovod's checkpoints have is for others to read
            return {"saved": saved}
        return {"saved": saved, "epoch": info.epoch, "processed_num": info.processed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """One of state_dict(), or of Horovod's: an epoch and a number, of samples in this sampler's own
        order."""
        if "saved" in state:
            self._load(state["saved"])
        else:
            self._load_horovods(state)
