"""torch.distributed over backend hvd: every collective, groups, objects, DDP."""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

import hvd
from conftest import PACKAGE, PATIENCE

torch = pytest.importorskip("torch")

from forked import Job  # noqa: E402
from torch_groups import HEAD  # noqa: E402

COLLECTIVES = HEAD + """
assert dist.get_backend() == "hvd"
x = torch.full((2, 2), 1.0 + rank)
work = dist.all_reduce(x, async_op=True)
assert torch.equal(work.get_future().wait()[0], x) and work.wait() and work.is_completed()
total = sum(range(1, size + 1))
assert x.tolist() == [[total] * 2] * 2
turned = torch.arange(4.0).reshape(2, 2).t()  # not contiguous
dist.all_reduce(turned, op=dist.ReduceOp.AVG)
assert turned.tolist() == [[0, 2], [1, 3]]
dist.broadcast(x.fill_(rank), 1)
assert x.tolist() == [[1, 1]] * 2
outputs = [torch.zeros(2) for _ in range(size)]
dist.all_gather(outputs, torch.full((2,), float(rank)))
assert [o.tolist() for o in outputs] == [[r, r] for r in range(size)]
whole = torch.zeros(size, 2)
dist.all_gather_into_tensor(whole, torch.full((1, 2), float(rank)))
assert whole[:, 0].tolist() == list(range(size))
share = torch.zeros(2)
dist.reduce_scatter_tensor(share, torch.arange(2.0 * size))
assert share.tolist() == [size * (2 * rank), size * (2 * rank + 1)]
dist.reduce_scatter(share, [torch.full((2,), float(r)) for r in range(size)], op=dist.ReduceOp.MAX)
assert share.tolist() == [rank, rank]
mine = torch.full((2,), 1.0 + rank)
dist.reduce(mine, 1)
assert mine.tolist() == [total if rank == 1 else 1 + rank] * 2
found = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
dist.gather(torch.tensor([float(rank)]), found, 0)
assert rank or [f.item() for f in found] == list(range(size))
given = torch.zeros(1)
dist.scatter(given, [torch.tensor([10.0 + r]) for r in range(size)] if rank == 1 else None, 1)
assert given.item() == 10 + rank
swapped = torch.zeros(size)
dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
assert swapped.tolist() == [10 * r + rank for r in range(size)]
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(size)]
one = [{"from": rank}]
dist.broadcast_object_list(one, 1)
assert one == [{"from": 1}]
received = torch.zeros(2, 2).t()  # several of a tag meet in their order; not contiguous
letters = [dist.isend(torch.full((2, 2), 10.0 * rank + i), (rank + 1) % size, tag=3) for i in range(3)]
for i in range(3):
    assert dist.recv(received, (rank - 1) % size, tag=3) == (rank - 1) % size
    assert received.tolist() == [[10.0 * ((rank - 1) % size) + i] * 2] * 2
for letter in letters:
    letter.wait()
room = torch.zeros(1)
both = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.tensor([1.0 + rank]), (rank + 1) % size),
                               dist.P2POp(dist.irecv, room, (rank - 1) % size)])
for work in both:
    work.wait()
assert room.item() == 1 + (rank - 1) % size
dist.barrier()
pair = dist.new_group([0, 2])
if rank in (0, 2):  # ranks of the world, in a group where they have others
    z = torch.tensor([float(rank)])
    dist.send(z, 2, group=pair) if rank == 0 else dist.recv(z, 0, group=pair)
    assert z.item() == 0
if rank in (0, 2):
    y = torch.tensor([float(rank)])
    dist.all_reduce(y, group=pair)
    assert y.item() == 2
    dist.broadcast(y.fill_(rank), 2, group=pair)
    assert y.item() == 2
for call, match in ((lambda: dist.all_reduce(x, op=dist.ReduceOp.BXOR), "no reduction BXOR of torch.float32"),
                    (lambda: dist.all_reduce(x.bool(), op=dist.ReduceOp.AVG), "no reduction AVG of torch.bool"),
                    (lambda: dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.MAX), "expected SUM"),
                    (lambda: dist.all_reduce(torch.ones(2, device="meta")), "on meta"),
                    (lambda: dist.all_gather([x], x) if size > 1 else None, "one for each rank"),
                    (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 3, 0], [4, 1, 0]), "input_split_sizes"),
                    (lambda: dist.all_reduce(x.to(torch.float8_e4m3fn)), "dtype")):
    try:
        call()
        print("no error", match)
    except (hvd.HvdError, RuntimeError) as error:
        assert match in str(error), error
try:
    dist.all_reduce(torch.ones(1 + rank))
    print("no mismatch")
except hvd.MismatchError:
    pass
dist.all_reduce(x)
dist.destroy_process_group()
hvd.torch.distributed.init_process_group()
dist.barrier()
dist.destroy_process_group()
"""

FORMS = HEAD + """
import inspect, warnings
from datetime import timedelta
warnings.simplefilter("ignore")  # of PyTorch's, about sparse tensors
everybody = list(range(size))
bits = torch.tensor([1 << rank, 3])
dist.all_reduce(bits, op=dist.ReduceOp.BOR)
assert bits.tolist() == [(1 << size) - 1, 3]
dist.all_reduce(bits.fill_(1 + rank), op=dist.ReduceOp.BXOR)
assert bits[0].item() == (1 ^ 2 if size == 2 else 1 ^ 2 ^ 3)
truth = torch.tensor([rank == 0, True, False])
dist.all_reduce(truth)
assert truth.tolist() == [True, True, False]
dist.all_reduce(truth.copy_(torch.tensor([rank == 0, True, False])), op=dist.ReduceOp.BAND)
assert truth.tolist() == [False, True, False]
halves = torch.full((3,), 2.0)
dist.all_reduce(halves, op=dist._make_nccl_premul_sum(0.5)) if hasattr(dist, "_make_nccl_premul_sum") else halves.fill_(size)
assert halves.tolist() == [size] * 3
turning = torch.tensor([1j, 2.0])
dist.all_reduce(turning)
assert turning.tolist() == [size * 1j, 2.0 * size]
wide = torch.tensor([[1 + 1j, 2.0]]) * rank
dist.broadcast(wide, 1)
assert wide.tolist() == [[1 + 1j, 2.0]]
small = [torch.zeros(2).to(torch.float8_e4m3fn) for _ in everybody]
dist.all_gather(small, torch.full((2,), float(rank)).to(torch.float8_e4m3fn))
assert [s.float().tolist() for s in small] == [[r, r] for r in everybody]
least = torch.tensor([8 + rank])
dist.reduce(least, 1, op=dist.ReduceOp.BAND)
assert rank != 1 or least.item() == 8
share = torch.zeros(1, dtype=torch.int64)
dist.reduce_scatter_tensor(share, torch.full((size,), 1 << rank), op=dist.ReduceOp.BOR)
assert share.item() == (1 << size) - 1

several = [torch.full((2,), float(rank)), torch.full((3,), 1.0)]
dist.all_reduce_coalesced(several)
assert [s[0].item() for s in several] == [sum(everybody), size]
with dist._coalescing_manager() as manager:
    for one in several:
        dist.all_reduce(one, op=dist.ReduceOp.MAX)
rooms, rows = [torch.zeros(size), torch.zeros(2 * size)], [torch.full((1,), float(rank)), torch.full((2,), float(rank))]
with dist._coalescing_manager(async_ops=True) as manager:
    for room, row in zip(rooms, rows):
        dist.all_gather_into_tensor(room, row)
manager.wait()
assert rooms[0].tolist() == everybody and rooms[1].tolist() == [r for r in everybody for _ in range(2)]
parts = [torch.zeros(1), torch.zeros(2)]
with dist._coalescing_manager() as manager:
    for part, row in zip(parts, rooms):
        dist.reduce_scatter_tensor(part, row)
assert parts[0].item() == size * rank and parts[1].tolist() == [size * rank] * 2
listed = [[torch.zeros(2), torch.zeros(3)] for _ in everybody]
dist.all_gather_coalesced(listed, [torch.full((2,), float(rank)), torch.full((3,), -float(rank))])
assert [ranks[1][0].item() for ranks in listed] == [-r for r in everybody]

spread = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (8,))
dist.all_reduce(spread)
assert spread.to_dense().tolist() == [float(i < size) + 2.0 * size * (i == 5) for i in range(8)]
outputs = torch.zeros(size * (rank + 1), 2)
inputs = torch.cat([torch.full((r + 1, 2), float(rank)) for r in everybody])  # r + 1 rows to rank r
dist.all_to_all_single(outputs, inputs, [rank + 1] * size, [r + 1 for r in everybody])
assert outputs[:, 1].tolist() == [float(r) for r in everybody for _ in range(rank + 1)]
swapped = [torch.zeros(1 + r) for r in everybody]
dist.all_to_all(swapped, [torch.full((1 + rank,), 10.0 * rank + r) for r in everybody])
assert [s[0].item() for s in swapped] == [10.0 * r + rank for r in everybody]

if rank == 0:  # from anybody, several of one, then one that a receive was begun for, by name
    room, came = torch.zeros(2), []
    for _ in range(2 * (size - 1)):
        came.append(dist.recv(room))
        assert room.tolist() == [came[-1]] * 2
    assert sorted(came) == sorted(2 * everybody[1:])
    dist.barrier()
    for r in everybody[1:]:
        dist.recv(room, r)
        assert room.tolist() == [r + 0.5] * 2
    dist.recv(torch.zeros(3), tag=7)  # which is now awaited from rank 2
    try:
        dist.recv(torch.zeros(4), 2, tag=7)
        print("no error")
    except hvd.InvalidError as error:
        assert "3 of torch.float32" in str(error), error
else:
    for _ in range(2):
        dist.send(torch.full((2,), float(rank)), 0)
    dist.barrier()
    dist.send(torch.full((2,), rank + 0.5), 0)
    if rank == 1:
        dist.send(torch.zeros(3), 0, tag=7)
dist.barrier()

monitored = "only implemented for GLOO" not in inspect.getsource(dist.monitored_barrier)  # as PyTorch had it up to 2.11
if monitored:
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)
try:
    if rank != 1 and monitored:
        dist.monitored_barrier(timeout=timedelta(seconds=1.5))
        print("no error")
except (hvd.WaitTimeoutError, hvd.MismatchError) as error:
    assert ("Rank 1 failed to pass" if rank == 0 else f"Rank {rank} successfully reached") in str(error), error
dist.barrier()
if monitored:
    dist.monitored_barrier(timeout=timedelta(seconds=60))
if rank == 0:  # late for a barrier: the others' time is over, and it is told so at its own call
    dist.recv(torch.zeros(1), 1, tag=9)
    try:
        dist.barrier()
        print("no error")
    except (hvd.WaitTimeoutError, hvd.MismatchError):
        pass
else:
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    late = dist.barrier(async_op=True)
    try:
        late.get_future().wait()
        print("no error")
    except Exception as error:
        assert "barrier" in str(error) or "every rank waits" in str(error), error
    assert late.is_completed() and not late.is_success()
    dist.group.WORLD.set_timeout(timedelta(seconds=300))
    if rank == 1:
        dist.send(torch.zeros(1), 0, tag=9)

from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
assert mesh["inner"].get_group().size() == size and mesh["outer"].get_group().size() == 1
dist.all_reduce(several[0], group=mesh["inner"].get_group())
dist.all_reduce(several[0], group=mesh["outer"].get_group())
scattered = [None]
dist.scatter_object_list(scattered, [f"for {r}" for r in everybody] if rank == 0 else None, 0)
assert scattered == [f"for {rank}"]
gathered = [None] * size if rank == 1 else None
dist.gather_object(rank, gathered, 1)
assert rank != 1 or gathered == everybody
letter = [None]
if rank == 0:
    dist.send_object_list([{"a": 1}], 1)
elif rank == 1:
    dist.recv_object_list(letter, 0)
    assert letter == [{"a": 1}]
dist.destroy_process_group()
"""

DROPPED = HEAD + """
import gc, time, weakref
from hvd.torch import _work
def reduce():
    x = torch.ones(4)
    dist.all_reduce(x, async_op=True)  # nobody waits for it
    return weakref.ref(x)
def all_over():
    end = time.monotonic() + 60
    while not all(work._settled or work._handle.done() for work in list(_work._under_way.values())):
        assert time.monotonic() < end, "operations did not complete"
        time.sleep(0.001)
tensor = torch.ones(4)
kept = dist.all_reduce(tensor, async_op=True)
dropped = [reduce() for _ in range(20)]
all_over()
for _ in range(20):
    dist.all_reduce(torch.ones(1))
gc.collect()
assert not any(reference() is not None for reference in dropped), "tensors of operations that are over"
assert kept.wait() and kept.result()[0] is tensor and tensor.tolist() == [size] * 4
last = reduce()
all_over()
dist.destroy_process_group()
gc.collect()
assert last() is None, "a tensor of a group that is destroyed"
"""

CHECKPOINT = HEAD + """
import os, sys
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    return model
path = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "checkpoint")
one, other = made(1), made(2)
dcp.async_save({"model": get_model_state_dict(one)}, checkpoint_id=path).result()
dist.barrier()
found = {"model": get_model_state_dict(other)}
dcp.load(found, checkpoint_id=path)
set_model_state_dict(other, found["model"])
for mine, theirs in zip(one.parameters(), other.parameters()):
    assert torch.equal(mine.full_tensor(), theirs.full_tensor())
dist.destroy_process_group()
"""

PIPELINE = HEAD + """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(size)]
stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
data, target = torch.randn(8, 4), torch.randn(8, 4)
schedule = ScheduleGPipe(stage, 4, loss_fn=torch.nn.functional.mse_loss)
if rank == 0:
    schedule.step(data)
else:
    losses = []
    schedule.step(target=target, losses=losses)
whole = torch.nn.functional.mse_loss(layers[1](layers[0](data)), target)
mine = layers[rank].weight.grad.clone()
layers[rank].zero_grad()
whole.backward()
assert torch.allclose(mine, layers[rank].weight.grad, atol=1e-6)
dist.destroy_process_group()
"""

DDP = HEAD + """
torch.manual_seed(rank)  # DDP takes rank 0's
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
parallel = torch.nn.parallel.DistributedDataParallel(model)
torch.manual_seed(0)
whole = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
for step in range(5):
    data = torch.randn(8 * size, 4, generator=torch.Generator().manual_seed(step))
    for network, rows in ((parallel, data[rank::size]), (whole, data)):
        network.zero_grad()
        network(rows).pow(2).mean().backward()
        with torch.no_grad():
            for p in network.parameters():
                p -= 0.1 * p.grad
for mine, theirs in zip(model.parameters(), whole.parameters()):
    assert torch.allclose(mine, theirs, atol=1e-6)
dist.destroy_process_group()
"""


FSDP = HEAD + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)
whole = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
steps = [torch.optim.SGD(network.parameters(), lr=0.1) for network in (model, whole)]
for step in range(5):
    data = torch.randn(8 * size, 4, generator=torch.Generator().manual_seed(step))
    for network, optimizer, rows in ((model, steps[0], data[rank::size]), (whole, steps[1], data)):
        optimizer.zero_grad()
        network(rows).pow(2).mean().backward()
        optimizer.step()
for mine, theirs in zip(model.parameters(), whole.parameters()):
    assert torch.allclose(mine.full_tensor(), theirs, atol=1e-6)
dist.destroy_process_group()
"""

NEW_ENOUGH = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)  # for fully_shard


PAGES = [
    PACKAGE.parents[1] / "docs" / name
    for name in ("torch-distributed.md", "from-torchrun.md", "from-torchft.md")
]


def examples(launcher=""):
    """The pages' blocks for hvdrun or torchrun that this PyTorch can run."""
    kind = f"python {launcher}".strip()
    found = {f"{page.stem} {number}": block for page in PAGES
             for number, block in enumerate(re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.S))}
    return {name: block for name, block in found.items() if NEW_ENOUGH or "fully_shard" not in block}


CASES = {"dropped": (DROPPED, 2), "collectives": (COLLECTIVES, 3), "forms": (FORMS, 3), "ddp": (DDP, 2)}
if NEW_ENOUGH:
    CASES.update(fsdp=(FSDP, 2), checkpoint=(CHECKPOINT, 2), pipeline=(PIPELINE, 2))
CASES.update({name: (block, 2) for name, block in examples().items()})


@pytest.mark.parametrize("source, size", CASES.values(), ids=CASES.keys())
def test_on_several_ranks(tmp_path, source, size):
    script = tmp_path / "worker.py"
    script.write_text(source + "\nprint('fine', flush=True)\nhvd.shutdown()\n")
    with closing(Job(size, [script])) as job:
        job.end()
        lines = [line for line in job.lines if not line.startswith("driver:")]
    told = " ".join(line for line in lines
                    if "Warning" not in line and "warn" not in line).replace("finefine", "fine fine").split()
    assert told == ["fine"] * size, "\n".join(lines)


@pytest.mark.parametrize("source", examples("torchrun").values(), ids=examples("torchrun").keys())
def test_under_torchrun(tmp_path, source):
    """The ranks meet by torch's own store, and end by themselves."""
    script = tmp_path / "worker.py"
    script.write_text(source + "\nprint('fine', flush=True)\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HVD_DRIVER", "HVD_SECRET"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(script)], env={**environment, "PYTHONPATH": str(PACKAGE),
                            "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300 * PATIENCE)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


class Part:
    """A handle that ends, or fails, when its event is set."""

    def __init__(self, event, problem=None):
        self.event, self.problem = event, problem

    def wait(self, timeout=None):
        assert self.event.wait(60 * PATIENCE)
        if self.problem is not None:
            raise self.problem

    def done(self):
        return self.event.is_set()


def told(future):
    """What it was set to, or the exception's text."""
    deadline = time.monotonic() + 60 * PATIENCE
    while not future.done():
        assert time.monotonic() < deadline, "nobody sets the future"
        time.sleep(0.001)
    try:
        return future.value()
    except Exception as problem:
        return str(problem)


def test_futures_of_several_of_which_one_fails():
    """All are waited for before one's time-out is told, and whatever ends one future leaves the others."""
    from hvd.torch._work import HvdWork, Several

    now, later = threading.Event(), threading.Event()
    now.set()
    late = HvdWork(Part(now, hvd.WaitTimeoutError("too late")), lambda _: 1)
    pending = HvdWork(Part(later), lambda _: 2)
    both = HvdWork(Several([late, pending]), lambda _: 3).get_future()
    ends = HvdWork(Part(now, SystemExit("ends")), lambda _: 4).get_future()
    last = HvdWork(Part(now), lambda _: 5).get_future()
    assert not both.done()
    later.set()
    assert "too late" in told(both)
    assert "ends" in told(ends)
    assert told(last) == 5
