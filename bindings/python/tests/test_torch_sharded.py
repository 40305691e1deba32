"""FSDP2's parameters and moments as shards: a worker is killed, another joins, and no bit is another."""

import functools
import re
from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    pytest.skip("this PyTorch's FSDP2 can't sum gradients as they are", allow_module_level=True)

import hvd.torch as hvd  # noqa: E402
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


@pytest.fixture
def sharded(alone):
    """(Sharded, what makes its module) in a group of one."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    def make():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
        fully_shard(module, mesh=dist.init_device_mesh("cpu", (1,)))
        return module, torch.optim.AdamW(module.parameters(), lr=0.1)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield hvd.elastic.Sharded, make
    dist.destroy_process_group()


def step(module, optimizer):
    optimizer.zero_grad()
    module(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def flats(module, optimizer):
    tensors = [*module.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    return [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]


def test_rows_are_committed_where_they_are(sharded):
    Sharded, make = sharded
    shards = Sharded(make)
    state = hvd.elastic.TorchState(shards=shards)
    module, optimizer = shards.deal()
    step(module, optimizer)
    state.commit()
    mine = {p.to_local().data_ptr() for p in module.parameters()}
    assert mine < {shard.array.data_ptr() for shard in shards._shards.values()}
    assert len(shards._shards) == 3 * len(mine)
    kept = [t.clone() for t in flats(module, optimizer)]
    step(module, optimizer)
    state.restore()
    again = shards.deal()
    assert again[0] is not module and all(map(torch.equal, flats(*again), kept))
    step(*again)
    assert not all(map(torch.equal, flats(*again), kept))
    left = [p.full_tensor() for p in module.parameters()]
    assert all(map(torch.equal, left, kept)), "restored, and left alone"


def test_make_may_give_the_same_module_again(sharded):
    Sharded, make = sharded
    module, optimizer = None, None

    def once():
        nonlocal module, optimizer
        if module is None or not optimizer.state:
            module, optimizer = make()
        optimizer.state.clear()  # so that deal() has it make its state by a step, which writes parameters
        return module, optimizer

    shards = Sharded(once)
    state = hvd.elastic.TorchState(shards=shards)
    step(*shards.deal())
    state.commit()
    kept = [t.clone() for t in flats(module, optimizer)]
    step(module, optimizer)
    state.restore()
    same, _ = shards.deal()
    assert same is module and all(map(torch.equal, flats(module, optimizer), kept))
    state.commit()
    step(module, optimizer)
    state.restore()
    shards.deal()
    assert all(map(torch.equal, flats(module, optimizer), kept))


def test_a_hidden_commit_of_rows_ends_before_the_step(sharded):
    Sharded, make = sharded
    shards = Sharded(make)
    state = hvd.elastic.TorchState(shards=shards, hidden_commits=True)
    module, optimizer = shards.deal()
    for _ in range(3):
        step(module, optimizer)
        state.commit()
        assert state._begun
    kept = [t.clone() for t in flats(module, optimizer)]
    step(module, optimizer)
    assert not state._begun
    state.restore()
    module, optimizer = shards.deal()
    assert all(map(torch.equal, flats(module, optimizer), kept))
    step(module, optimizer)
    state.commit()
    with torch.no_grad():
        module[0].weight.add_(1)
    with pytest.raises(hvd.InvalidError, match="'shards.model.0.weight' was written between"):
        step(module, optimizer)


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
