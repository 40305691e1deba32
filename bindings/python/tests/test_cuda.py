"""PyTorch on GPUs, over backend nccl: collectives, gradients, torch.distributed, state through a loss. Ranks
share a GPU where there are fewer: NCCL takes them for hosts of their own (NCCL_HOSTID)."""

from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():  # which asks the driver alone: this process stays one that can fork
    pytest.skip("no GPU for this test: torch.cuda.is_available() is False", allow_module_level=True)

import hvd  # noqa: E402

if not hvd.cuda_built():
    pytest.skip("no backend here serves CUDA's memory (NCCL was not found)", allow_module_level=True)

import test_torch_distributed as scripts  # noqa: E402
from forked import Job  # noqa: E402

WORKER = Path(__file__).with_name("torch_elastic_worker.py")

HEAD = """
import os
os.environ.setdefault("NCCL_HOSTID", f"hvd-{os.getpid()}")
import torch
import hvd.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
torch.set_default_device("cuda")
"""

COLLECTIVES = HEAD + """
everybody, total = list(range(size)), sum(range(1, size + 1))
x = torch.full((3,), 1.0 + rank)
assert hvd.allreduce(x, op=hvd.Sum).tolist() == [total] * 3 and x.tolist() == [1.0 + rank] * 3
assert hvd.allreduce(x).tolist() == [total / size] * 3
assert hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0).tolist() == [2.0 * total] * 3
assert hvd.allreduce_(x.clone(), op=hvd.Max).tolist() == [size] * 3
several = hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, prescale_factor=2.0)
assert [one[0].item() for one in several] == [2 * total, 4 * total]
assert all(one.is_cuda for one in several)
rows = hvd.allgather(torch.full((rank, 2), float(rank)))
assert rows.is_cuda and rows[:, 1].tolist() == [r for r in everybody for _ in range(r)]
both = hvd.grouped_allgather([torch.full((1 + rank,), rank), torch.full((2,), 2.0 * rank)])
assert both[0].tolist() == [r for r in everybody for _ in range(1 + r)] and both[1].tolist() == [2.0 * r for r in everybody for _ in "ab"]
first, second = (("a", "b") if rank == 0 else ("b", "a"))  # in an order of each rank's own
handles = {name: hvd.allgather_async(torch.full((1 + (name == "b"),), float(rank)), name) for name in (first, second)}
assert handles[first].wait().numel() + handles[second].wait().numel() == 3 * size
assert handles["b"].wait().tolist() == [float(r) for r in everybody for _ in range(2)]
shares, received = hvd.alltoall(torch.arange(float(sum(1 + r for r in everybody))) + 100 * rank, splits=[1 + r for r in everybody])
assert received.tolist() == [1 + rank] * size and [int(v) // 100 for v in shares] == [r for r in everybody for _ in range(1 + rank)]
assert hvd.alltoall(torch.full((size,), float(rank))).tolist() == everybody
part = hvd.reducescatter(torch.arange(2.0 * size).reshape(size, 2), op=hvd.Sum, prescale_factor=2.0)
assert part.tolist() == [[2.0 * size * 2 * rank, 2.0 * size * (2 * rank + 1)]]
assert hvd.broadcast(x, 1).tolist() == [2.0] * 3
mixed = [torch.full((2,), float(rank)), torch.full((2,), float(rank), device="cpu")]
hvd.broadcast_parameters([(f"p{i}", one) for i, one in enumerate(mixed)], 1)
assert [one.tolist() for one in mixed] == [[1.0] * 2] * 2
sparse = torch.sparse_coo_tensor([[rank]], [2.0], (size,))
assert hvd.sparse_allreduce_async(sparse, "sparse", op=hvd.Sum).wait().to_dense().tolist() == [2.0] * size

weights = torch.ones(2, requires_grad=True)
(hvd.allreduce(weights * (1 + rank), op=hvd.Sum).sum() * 3).backward()
assert weights.grad.tolist() == [3.0 * size * (1 + rank)] * 2
weights.grad = None
(hvd.allgather(weights[:1] * (1 + rank)) * torch.arange(1.0, size + 1)).sum().backward()
assert weights.grad.tolist() == [(1.0 + rank) ** 2, 0.0]

side = torch.cuda.Stream()  # an operation comes after what its stream has, and before what it is given
with torch.cuda.stream(side):
    big = torch.ones(1 << 22)
    for _ in range(50):
        big = big * 1.0
    hvd.allreduce_(big, op=hvd.Sum)
    big += 1
torch.cuda.current_stream().wait_stream(side)
assert big.min().item() == big.max().item() == size + 1

from hvd.errors import InvalidError, UnsupportedError
for call, kind, match in ((lambda: hvd.allreduce(torch.ones(2, dtype=torch.int16)), UnsupportedError, "int16"),
                          (lambda: hvd.allreduce(torch.ones(2, dtype=torch.int64), op=hvd.Sum, prescale_factor=2.0), InvalidError, "floating point"),
                          (lambda: hvd.alltoall(torch.ones(4), splits=[1] * size), InvalidError, "add up"),
                          (lambda: hvd.allgather(torch.tensor(1.0)), InvalidError, "dimension")):
    try:
        call()
        print("no error", match)
    except kind as error:
        assert match in str(error), error
"""

OPTIMIZER = HEAD + """
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model, whole = network(), network()
with torch.no_grad():
    for p in model.parameters():
        p += rank
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
model.eval(), whole.eval()
adam = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(adam, named_parameters=model.named_parameters(), gradient_predivide_factor=2.0, op=hvd.Average)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
reference = torch.optim.Adam(whole.parameters(), lr=0.01)
for step in range(6):
    data = torch.randn(8 * size, 4, generator=torch.Generator("cuda").manual_seed(step))
    for net, chosen, rows in ((model, optimizer, data[rank::size]), (whole, reference, data)):
        chosen.zero_grad()
        net(rows).pow(2).mean().backward()
        chosen.step()
for mine, theirs in zip(model.parameters(), whole.parameters()):
    assert torch.allclose(mine, theirs, atol=1e-5), (mine, theirs)
hvd.broadcast_optimizer_state(optimizer, root_rank=1)  # with moments on the device and counts of steps on the host
"""

STATE = HEAD + """
import json, sys
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    print(json.dumps({"event": "train", "rank": hvd.rank(), "size": hvd.size(), "step": state.step}), flush=True)
    while state.step < 12:
        data = torch.randn(12, 64, generator=torch.Generator("cuda").manual_seed(state.step))
        optimizer.zero_grad()
        model(data[hvd.rank()::hvd.size()]).pow(2).mean().backward()
        for p in model.parameters():
            hvd.allreduce_(p.grad)
        optimizer.step()
        state.step += 1
        if state.step % 4 == 0:
            state.commit()
        if state.step == 6 and hvd.size() == 3:
            hvd.barrier()
            print(json.dumps({"event": "ready", "rank": hvd.rank(), "pid": os.getpid()}), flush=True)
            while True:
                hvd.allreduce_(torch.ones(1))
                torch.cuda.synchronize()

torch.manual_seed(0)
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.randn_like(p))
begun = [p.detach().clone() for p in model.parameters()]
train(state)
mine = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for p, old in zip(model.parameters(), begun):
        p.copy_(old)
reference = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(12):
    data = torch.randn(12, 64, generator=torch.Generator("cuda").manual_seed(step))
    reference.zero_grad()
    model(data).pow(2).mean().backward()
    reference.step()
error = max((a - b).abs().max().item() for a, b in zip(mine, model.parameters()))
print(json.dumps({"event": "end", "error": error, "step": state.step}), flush=True)
hvd.shutdown()
"""


SHARDS = HEAD + """
import json
state = hvd.elastic.TorchState(step=0)
ELEMENTS = 1_000_003
shard = state.add_shard("m", ELEMENTS, allocate=lambda length: torch.zeros(length, dtype=torch.float64))

def expected():
    return torch.arange(shard.offset, shard.offset + len(shard), dtype=torch.float64) + state.step

@hvd.elastic.run
def train(state):
    same = torch.equal(shard.array, expected()) and shard.array.is_cuda
    print(json.dumps({"event": "train", "rank": hvd.rank(), "size": hvd.size(), "step": state.step, "same": same}), flush=True)
    while state.step < 12:
        shard.array += 1
        state.step += 1
        if state.step % 4 == 0:
            state.commit()
        if state.step == 6 and hvd.size() == 3:
            hvd.barrier()
            print(json.dumps({"event": "ready", "rank": hvd.rank(), "pid": os.getpid()}), flush=True)
            while True:
                hvd.allreduce_(torch.ones(1))
                torch.cuda.synchronize()

shard.array[:] = expected()
train(state)
whole = hvd.allgather(shard.array)
same = torch.equal(whole, torch.arange(ELEMENTS, dtype=torch.float64) + 12)
print(json.dumps({"event": "end", "step": state.step, "same": same}), flush=True)
hvd.shutdown()
"""


def on_the_device(script):
    """test_torch_distributed.py's, with tensors on the GPU."""
    head = (
        'import os\nos.environ.setdefault("NCCL_HOSTID", f"hvd-{os.getpid()}")\nimport torch\nimport hvd\nhvd.init()\n'
        'torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())\ntorch.set_default_device("cuda")\n'
    )
    return head + script.replace('mesh("cpu"', 'mesh("cuda"').replace(
        'device("cpu")', 'device("cuda")').replace("Generator()", 'Generator("cuda")')


CASES = {"ops": (COLLECTIVES, 3), "optimizer": (OPTIMIZER, 2)}
CASES.update({name: (on_the_device(source), size) for name, (source, size) in scripts.CASES.items()
              if name in ("collectives", "forms", "ddp", "fsdp", "pipeline")})


@pytest.mark.parametrize("source, size", CASES.values(), ids=CASES.keys())
def test_on_several_ranks(tmp_path, source, size):
    script = tmp_path / "worker.py"
    script.write_text(source + "\nprint('fine', flush=True)\nhvd.shutdown()\n")
    with closing(Job(size, [script])) as job:
        job.end()
    said = "\n".join(line for line in job.lines if not line.startswith("driver:"))
    assert said.count("fine") == size and "no error" not in said and "no mismatch" not in said, said


def killed(script, *arguments):
    """The events "end" of a job of three whose rank 1 is killed when it says "ready"."""
    with closing(Job(3, [script, *arguments], min_np=2)) as job:
        ready = {event["rank"]: event for event in (job.wait("ready") for _ in range(3))}
        job.kill(ready[1]["pid"])
        ends = job.end()
    again = [event["step"] for event in job.seen if event["event"] == "train" and event["size"] == 2]
    assert len(ends) == 2 and again == [4, 4], job.seen
    return ends


def test_state_on_the_device_survives_a_loss(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(STATE)
    assert all(end["error"] < 1e-4 and end["step"] == 12 for end in killed(script))


def test_shards_on_the_device_survive_a_loss(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(SHARDS)
    assert all(end["same"] and end["step"] == 12 for end in killed(script))


@pytest.mark.parametrize("kind", ["ddp", *(["fsdp"] if scripts.NEW_ENOUGH else [])])
def test_a_group_on_the_device_survives_a_loss(kind):
    assert all(end["error"] < 1e-4 and end["step"] == 12 for end in killed(WORKER, "hvd", kind, 12, "cuda"))
