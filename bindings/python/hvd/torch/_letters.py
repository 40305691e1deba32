"""Messages between two ranks of a group: send, recv, recv from anybody, and the barrier that names who is
missing."""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections import Counter
from functools import partial
from typing import Callable, Sequence

import torch

from .. import _default as plain
from ..errors import HvdError, InvalidError, MismatchError, WaitTimeoutError
from ..handle import Handle
from ._values import flat, put

_NUMBERS = 4096  # of a tag and direction between two ranks at once
_LOOK_S = 0.05   # a thread that waits looks again, as another one may have taken what came
_TEXT = 256      # bytes of a verdict
_GRACE_S = 1.0   # within which rank 0's verdict arrives
_LATE = (WaitTimeoutError, MismatchError
         )  # the latter at a time-out, too: if every rank waits, each for something else


class _Posted:
    """A receive that was begun for whoever asks."""

    def __init__(self, room: torch.Tensor, handle: Handle, until: float):
        self.room, self.handle, self.until = room, handle, until

    def is_late(self) -> bool:
        """Whether its time was over before anything came."""
        return self.handle.done() and self.until <= time.monotonic() and isinstance(
            self.handle.exception(), _LATE)


class Letters:
    """The n-th message of a tag meets the n-th receive of it, as in torch's own backends."""

    def __init__(self, group: str, rank: int, ranks: Sequence[int]):
        self._group, self._rank, self._ranks = group, rank, ranks
        self._lock = threading.Lock()
        self._counts: Counter[tuple[bool, int,
                                    int]] = Counter()  # so far: whether sent, the other's rank, tag
        self._posted: dict[tuple[int, int], _Posted] = {}  # by the sender's rank and tag

    def _name(self, sends: bool, rank: int, tag: int) -> str:
        if not 0 <= rank < len(self._ranks) or rank == self._rank:
            raise InvalidError(
                f"{'send to' if sends else 'recv from'} rank {rank}: expected another rank of 0 to {len(self._ranks) - 1}"
            )
        number = self._counts[sends, rank, tag]
        self._counts[sends, rank, tag] += 1
        return f"torch {self._group} {tag} {number % _NUMBERS}"

    def send(self, tensor: torch.Tensor, rank: int, tag: int, timeout: float) -> Handle:
        with self._lock:
            name = self._name(True, rank, tag)
        return plain.send_async(flat(tensor), self._ranks[rank], name, timeout=timeout)

    def receive(self, room: torch.Tensor, rank: int, tag: int, timeout: float) -> Handle:
        """Into `room`, or, if a receive was begun for anybody, a handle whose result is its memory."""
        with self._lock:
            posted = self._posted.pop((rank, tag), None)
            if posted is None or posted.is_late():  # for its sender, too, that message has failed
                name = self._name(False, rank, tag)
            elif (posted.room.dtype, posted.room.numel()) != (room.dtype, room.numel()):
                self._posted[rank, tag] = posted
                raise InvalidError(
                    f"recv from rank {rank}, tag {tag}: {room.numel()} of {room.dtype}, but a recv from any "
                    f"source has begun to receive {posted.room.numel()} of {posted.room.dtype}")
            else:
                return posted.handle
        return plain.receive_async(room, self._ranks[rank], name, timeout=timeout)

    def from_anybody(self, like: torch.Tensor, tag: int, timeout: float) -> _FromAnybody:
        found = _FromAnybody(self, like, tag, timeout)
        self._post(found)
        return found

    def _post(self, asked: _FromAnybody) -> None:
        """A receive from everybody of whom none is under way."""
        with self._lock:
            for rank in range(len(self._ranks)):
                old = self._posted.get((rank, asked.tag))
                if rank == self._rank or old is not None and not self._is_over(old, asked):
                    continue
                name = self._name(False, rank, asked.tag)
                room = torch.empty_like(asked.like)
                handle = plain.receive_async(room, self._ranks[rank], name, timeout=asked.timeout)
                self._posted[rank, asked.tag] = _Posted(room, handle, asked.until)

    @staticmethod
    def _is_over(posted: _Posted, asked: _FromAnybody) -> bool:
        """Whether it has ended with the time of whoever began it, before anything came."""
        if (posted.room.dtype, posted.room.numel()) != (asked.like.dtype, asked.like.numel()):
            raise InvalidError(
                f"recv from any source, tag {asked.tag}: {asked.like.numel()} of {asked.like.dtype}, but an earlier "
                f"one has begun to receive {posted.room.numel()} of {posted.room.dtype}")
        return posted.until < asked.until and posted.is_late()

    def _take(self, tag: int) -> tuple[int, _Posted] | None:
        with self._lock:
            for rank in range(len(self._ranks)):
                posted = self._posted.get((rank, tag))
                if posted is not None and posted.handle.done():
                    return rank, self._posted.pop((rank, tag))
        return None

    def _descriptors(self, tag: int) -> list[int]:
        with self._lock:
            return [
                posted.handle.descriptor() for (_, theirs), posted in self._posted.items() if theirs == tag
            ]

    # ---- monitored_barrier ----

    def monitored_barrier(self, timeout: float, wait_all_ranks: bool) -> None:
        """Everybody tells rank 0, which answers all: fine, or who is missing.

        The answer goes by a name that the asker made up, so that a late one meets nobody.
        """
        until = time.monotonic() + timeout
        name, text = f"torch {self._group} monitored", torch.zeros(_TEXT, dtype=torch.uint8, device="cpu")
        if self._rank:
            number = secrets.randbits(62)
            try:
                _Insisting(
                    until, lambda left: plain.send_async(torch.tensor([number], device="cpu"), self._ranks[0],
                                                         name, timeout=left)).wait()
                plain.receive(text, self._ranks[0], f"{name} {number}", timeout=timeout + _GRACE_S)
            except HvdError as problem:
                raise type(
                    problem
                )(f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                  f"for send/recv from rank 0: {problem}") from problem
            verdict = bytes(text.tolist()).rstrip(b"\0").decode("utf-8", "replace")
            if verdict:
                raise WaitTimeoutError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                    f"for send/recv from rank 0: {verdict}")
            return
        if timeout <= 0:
            raise WaitTimeoutError(f"Rank 0 timed out in monitoredBarrier after {timeout * 1000:.0f} ms")
        numbers = {
            rank: torch.zeros(1, dtype=torch.int64, device="cpu") for rank in range(1, len(self._ranks))
        }

        def ask(rank: int, left: float) -> Handle:
            return plain.receive_async(numbers[rank], self._ranks[rank], name, timeout=left)

        asked = {rank: _Insisting(until, partial(ask, rank)) for rank in numbers}
        missing, cause = [], None
        for rank, handle in asked.items():
            try:
                handle.wait()
            except _LATE as problem:
                missing.append(rank)
                cause = cause or problem
        told = missing if wait_all_ranks else missing[:1]
        verdict = "" if not told else (
            f"Rank{'s' if len(told) > 1 else ''} {', '.join(map(str, told))} failed to pass "
            f"monitoredBarrier in {timeout * 1000:.0f} ms")
        text[:len(verdict[:_TEXT])] = torch.tensor(list(verdict.encode()[:_TEXT]), dtype=torch.uint8,
                                                   device="cpu")
        answers = []
        for rank in (rank for rank in asked if rank not in missing):
            try:
                answers.append(
                    plain.send_async(text, self._ranks[rank], f"{name} {int(numbers[rank])}",
                                     timeout=timeout + _GRACE_S))
            except _LATE:  # whoever asked has given up
                if not told:
                    raise
        if told:
            raise WaitTimeoutError(verdict) from cause
        for answer in answers:
            answer.wait()


class _Insisting:
    """An operation that is begun again when it ends before its time: whoever was missing at an earlier one of
    its name is told of that one's end at its next call."""

    def __init__(self, until: float, begin: Callable[[float], Handle]):
        self._until, self._begin = until, begin
        self._handle: Handle | None = None
        self._start()

    def _start(self) -> None:
        while self._handle is None:
            left = self._until - time.monotonic()
            try:
                self._handle = self._begin(max(left, 0.001))
            except _LATE:
                if left <= 0:
                    raise

    def wait(self) -> None:
        while True:
            assert self._handle is not None
            try:
                self._handle.wait()
                return
            except _LATE:
                if time.monotonic() >= self._until:
                    raise
            self._handle = None
            self._start()


class _FromAnybody:
    """A handle to a receive from whoever sends first; its result is what came."""

    def __init__(self, letters: Letters, like: torch.Tensor, tag: int, timeout: float):
        self._letters, self.like, self.tag, self.timeout = letters, like, tag, timeout
        self.until = time.monotonic() + timeout
        self.source = -1
        self._lock = threading.Lock()
        self._taken: _Posted | None = None

    def done(self) -> bool:
        with self._lock:
            if self._taken is None:
                self._letters._post(self)
                found = self._letters._take(self.tag)
                if found is not None:
                    self.source, self._taken = found
            return self._taken is not None

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if until is not None and time.monotonic() >= until:
                raise WaitTimeoutError(
                    f"recv from any source, tag {self.tag}: nothing came within {timeout} s")
            descriptors = self._letters._descriptors(self.tag)
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * _LOOK_S)
        assert self._taken is not None
        return self._taken.handle.wait()


def deliver(target: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
    put(target, values)
    return [target]
