"""A worker of test_torch_elastic.py and test_cuda.py: trains, and says what it has in the end.

torch_elastic_worker.py BACKEND ddp|fsdp|waits|hides STEPS [cpu|cuda]

`waits` and `hides` are models with batch normalization under DDP, which commit at every step.
"""

import hashlib
import json
import os
import socket
import sys

import torch
import torch.distributed as dist

import hvd.torch as hvd

backend, kind, steps, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), (*sys.argv[4:], "cpu")[0]
os.environ.setdefault("NCCL_HOSTID", f"hvd-{os.getpid()}")  # ranks may share a GPU


def say(event, **fields):
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


def network():
    torch.manual_seed(0)
    if kind in ("waits", "hides"):  # large enough that a copy takes its time
        return torch.nn.Sequential(torch.nn.Linear(4, 512), torch.nn.BatchNorm1d(512),
                                   torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)


def make():
    """Of this generation's ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module, mesh = network(), init_device_mesh(device, (dist.get_world_size(),))
    for layer in (module[0], module[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def data(step):
    """12 rows, of which each rank takes its share: the mean does not depend on how many ranks there are."""
    return torch.randn(12, 4, generator=torch.Generator().manual_seed(step)).to(device)


def learn(module, optimizer, rows):
    optimizer.zero_grad()
    module(rows).pow(2).mean().backward()
    optimizer.step()


def connection():
    """To a server of the program's own: both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers.append(server.dup())  # it goes on listening
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def passes(ends):
    try:
        ends[0].sendall(b"x")
        return ends[1].recv(1) == b"x"
    except OSError:
        return False


own, servers = [], []
hvd.init()
group = hvd.elastic.Group(backend, timeout=300.0)
if kind != "fsdp":
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, sizes=[],
                                   hidden_commits=kind == "hides")
else:
    shards = hvd.elastic.Sharded(make)
    state = hvd.elastic.TorchState(shards=shards, step=0, sizes=[])


@hvd.elastic.run
def train(state):
    with group:
        size, rank = dist.get_world_size(), dist.get_rank()
        say("train", rank=rank, size=size, step=state.step, kept=group.reconfigures)
        assert (rank, size) == (hvd.rank(), hvd.size())
        module, optimizer = (torch.nn.parallel.DistributedDataParallel(model),
                             state.optimizer) if kind != "fsdp" else shards.deal()
        pair = dist.new_group(list(range(size)))
        if not own:
            own.append(connection())
        while state.step < steps:
            learn(module, optimizer, data(state.step)[rank::size])
            dist.barrier(pair)
            state.step += 1
            if state.step % 4 == 0 or kind in ("waits", "hides"):
                state.sizes = [*state.sizes, size]
                state.commit()
                say("commit", step=state.step, rank=rank)
            if state.step == 6 and size == 3:
                say("ready", rank=rank)  # the test kills one here: the commit of step 4 is what comes back
                while True:
                    dist.all_reduce(torch.ones(1))
        if kind != "fsdp":
            return [p.detach().flatten() for p in model.parameters()]
        return [p.full_tensor().detach().flatten() for p in module.parameters()]


values = torch.cat(train(state))
reference = network()
optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
for step in range(steps):
    learn(reference, optimizer, data(step))
expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
bits = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())
                      ).hexdigest() if kind in ("waits", "hides") else ""
say("end", rank=hvd.rank(), bits=bits, error=(values - expected).abs().max().item(), sizes=list(state.sizes),
    step=state.step, own=passes(own[0]))
group.close()
hvd.shutdown()
