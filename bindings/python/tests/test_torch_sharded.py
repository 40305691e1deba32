"""FSDP2's parameters and moments as shards: a worker is killed, another joins, and no bit is another."""

import functools
import re
from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    pytest.skip("this PyTorch's FSDP2 can't sum gradients as they are", allow_module_level=True)

from forked import Job  # noqa: E402

WORKER = Path(__file__).with_name("torch_sharded_worker.py")
PRELOAD = ("torch", "torch._dynamo", "torch.distributed.fsdp", "hvd.torch", "hvd.torch.distributed",
           "hvd.torch.sharded")


EXAMPLE = Path(__file__).parents[3] / "examples" / "python" / "sharded_adam.py"


def train(*arguments):
    """What each worker of the example prints, as (size, accuracy, weights)."""
    with closing(Job(4, [EXAMPLE, *arguments], preload=("torch", "hvd"), min_np=2, restart=False)) as job:
        job.end()
    found = re.findall(r"of (\d): loss [0-9.]+, test accuracy ([0-9.]+), weights ([0-9a-f]{16})",
                       "\n".join(job.lines))
    return [(int(size), float(accuracy), weights) for size, accuracy, weights in found]


def test_the_example_ends_alike_with_and_without_a_worker():
    four, three = train("60"), train("60", "25")
    assert [size for size, _, _ in four + three] == [4] * 4 + [3] * 3, (four, three)
    ends = {end[1:] for end in four + three}
    assert len(ends) == 1 and ends.pop()[0] > 0.6, (four, three)


@functools.cache
def whole():
    """What a job of three ends with that loses nobody."""
    with closing(Job(3, [WORKER, "hvd", "rows", "", "none"], preload=PRELOAD)) as job:
        ends = job.end()
    assert len(ends) == 3, job.lines
    return ends[0]["bits"]


@pytest.mark.parametrize("backend, kind", [("hvd", "rows"), ("gloo", "columns"), ("hvd", "hides"),
                                           ("gloo", "lost")])
def test_a_worker_is_killed_and_another_joins(backend, kind, tmp_path):
    """The commit comes back, from copies or (`lost`) from the program's checkpoint.

    The end is that of a job that loses nobody."""
    hosts = {"localhost": 3}
    with closing(Job(3, [WORKER, backend, kind, tmp_path / "checkpoint", "at"], preload=PRELOAD, min_np=2,
                     max_np=3, hosts=None, discover=lambda: dict(hosts), discovery_interval=0.05)) as job:
        ready = {event["rank"]: event for event in (job.wait("ready", size=3) for _ in range(3))}
        job.kill(ready[2]["pid"])
        for _ in range(2):
            job.wait("ready", size=2)
        hosts["another"] = 1
        ends = job.end()
    assert len(ends) == 3 and all(end["step"] == 16 for end in ends), ends
    assert len({end["bits"] for end in ends}) == 1, ends
    committed = {(event["step"], event["size"]): event["bits"] for event in job.seen if event["event"] == "commit"}
    trained = [event for event in job.seen if event["event"] == "train"]
    assert [event["size"] for event in trained] == [3] * 3 + [2] * 2 + [3] * 3, trained
    again, joined = trained[3:5], trained[5:]
    step = 6 if kind == "hides" else 4
    assert all(event["step"] == step and event["bits"] == committed[step, 3] for event in again), (again, committed)
    assert all(event["step"] == 9 for event in joined) and len({event["bits"] for event in joined}) == 1, joined
    size = 4 * ends[0]["elements"]
    assert all(0.25 * size < end["shard_bytes"] < 0.4 * size for end in ends), (size, ends)
    assert sum(end["shard_bytes"] for end in ends) == size, ends
    assert sum(end["copy_bytes"] for end in ends) == (0 if kind == "lost" else size), ends
    assert [event["event"] for event in job.seen].count("lost") == (2 if kind == "lost" else 0), job.seen
    assert ends[0]["bits"] == whole()
