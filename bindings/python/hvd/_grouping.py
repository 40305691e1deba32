"""What Horovod's optimizers and tapes take: num_groups and groups, the gradients that go together; op."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from .collectives import Adasum
from .errors import InvalidError


class Grouping:
    """A number of groups, as even as can be, or lists of variables whose gradients go together, the others'
    by themselves. With neither (None, 0) all go together, which is the fastest here."""

    def __init__(self, num_groups: int, groups: Any, key: Callable[[Any], Hashable]):
        for what, number in (("num_groups", num_groups), ("groups", groups)):
            if isinstance(number, int) and number < 0:
                raise InvalidError(f"{what} is {number}: expected 0 or more")
        self.number = groups if isinstance(groups, int) else num_groups
        lists = () if groups is None or isinstance(groups, int) else groups
        if not isinstance(lists, (list, tuple)) or not all(isinstance(one, (list, tuple)) for one in lists):
            raise InvalidError(f"groups is {groups!r}: expected a number or a list of lists of variables")
        self.members = [{key(variable) for variable in one} for one in lists]

    def parts(self, indices: Sequence[int], keys: Sequence[Hashable]) -> list[list[int]]:
        """`indices`, of the gradients that there are, by group; keys[index]: of the variable."""
        if self.members:
            found: dict[Any, list[int]] = {}
            for index in indices:
                group = next((n for n, members in enumerate(self.members) if keys[index] in members), None)
                found.setdefault(("alone", index) if group is None else group, []).append(index)
            return list(found.values())
        share, more = divmod(len(indices), self.number or 1)
        ends = [i * share + min(i, more) for i in range((self.number or 1) + 1)]
        return [list(indices[begin:end]) for begin, end in zip(ends, ends[1:]) if begin < end]


def refuse_adasum(op: Any) -> None:
    """For optimizers of Keras and TensorFlow, as Horovod does for Keras'."""
    if op == Adasum:
        raise InvalidError(
            "op is Adasum: expected Average or Sum. Adasum combines what a step has changed, and not gradients; "
            "hvd.torch.DistributedOptimizer does, and hvd.tensorflow.allreduce takes what is to be combined")
