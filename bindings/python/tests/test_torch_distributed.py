"""torch.distributed over backend hvd: every collective, groups, objects, DDP."""

import re
import sys

import pytest

from conftest import PACKAGE, PATIENCE

torch = pytest.importorskip("torch")
if not hasattr(torch.distributed, "_Work") or tuple(map(int, torch.__version__.split(".")[:2])) < (2, 2):
    pytest.skip("this PyTorch's process groups can't be made in Python", allow_module_level=True)

import hvd  # noqa: E402

HEAD = """
import torch, torch.distributed as dist
import hvd, hvd.torch.distributed
hvd.torch.distributed.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
"""

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
for call, match in ((lambda: dist.all_reduce(x.int(), op=dist.ReduceOp.BXOR), "no reduction"),
                    (lambda: dist.recv(x), "from whom"),
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


def examples():
    manual = (PACKAGE.parents[1] / "docs" / "torch-distributed.md").read_text()
    return re.findall(r"```python\n(.*?)```", manual, re.S)


@pytest.mark.parametrize("source, size", [(COLLECTIVES, 3), (DDP, 2), *([(FSDP, 2)] if NEW_ENOUGH else []), *((block, 2) for block in examples())])
def test_on_several_ranks(tmp_path, source, size):
    script, lines = tmp_path / "worker.py", []
    script.write_text(source + "\nprint('fine', flush=True)\nhvd.shutdown()\n")
    try:
        hvd.driver.run([sys.executable, str(script)], np=size, hosts=f"localhost:{size}", restart=False, elastic_timeout=60 * PATIENCE,
                       environment={"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}, timeout=100 * PATIENCE,
                       output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    except hvd.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert [line for line in lines if "Warning" not in line and "warn" not in line] == ["fine"] * size, "\n".join(lines)
