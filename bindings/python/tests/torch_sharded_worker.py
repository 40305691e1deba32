"""A worker of test_torch_sharded.py: trains what FSDP2 has dealt out, and says what all of it is.

torch_sharded_worker.py BACKEND rows|columns|hides|lost CHECKPOINT at|none

The gradient is rank 0's of all data, to which the others add zero: each step is the same computation on any
number of ranks. `at`: three ranks stop at step 6 until one is killed, two at step 9 until another joins.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist

import hvd.torch as hvd

backend, kind, checkpoint, steps = *sys.argv[1:4], 16
stops = {"at": {3: 6, 2: 9}, "none": {}}[sys.argv[4]]


def say(event, **fields):
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


def make():
    """Rows that do not divide by two or three, a rank without any of the last layer's, a buffer, and a frozen
    parameter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    made.append(dist.get_backend())
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 25), torch.nn.BatchNorm1d(25), torch.nn.Tanh(),
                                 torch.nn.Linear(25, 12), torch.nn.Linear(12, 1))
    module[0].bias.requires_grad_(False)
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)), "reshard_after_forward": False}
    if kind == "columns":
        options["shard_placement_fn"] = lambda p: Shard(1) if tuple(p.shape) == (1, 12) else None
    for layer in (module[0], module[3], module[4], module):
        layer = fully_shard(layer, **options) or layer
        layer.set_force_sum_reduction_for_comms(True)
        layer.set_gradient_divide_factor(1.0)
    return module, torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)


def bits(whole):
    """Of all that state_dict() has, in a digest."""
    digest = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key in sorted(value):
                digest.update(key.encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for inner in value:
                add(inner)
        else:
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())

    add(whole)
    return digest.hexdigest()[:16]


def load(sentence):
    say("lost", sentence=sentence)
    shards.load_state_dict(torch.load(checkpoint))
    state.step, state.sizes = 4, [3]


made = []
hvd.init()
group = hvd.elastic.Group(backend, timeout=300.0)
shards = hvd.elastic.Sharded(make, copies=0 if kind == "lost" else None)
state = hvd.elastic.TorchState(shards=shards, step=0, sizes=[], hidden_commits=kind == "hides")
state.on_lost(load)
assert made == ["fake"] and not dist.is_initialized()


@hvd.elastic.run
def train(state):
    with group:
        size, rank = dist.get_world_size(), dist.get_rank()
        module, optimizer = shards.deal()
        say("train", rank=rank, size=size, step=state.step, bits=bits(shards.state_dict()))
        while state.step < steps:
            rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(state.step))
            optimizer.zero_grad()
            (module(rows).pow(2).mean() * (rank == 0)).backward()
            optimizer.step()
            state.step += 1
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + state.step)
            if state.step % 4 == 0 or kind == "hides":
                state.sizes = [*state.sizes, size]
                state.commit()
                if kind == "lost":
                    whole = shards.state_dict()
                    if rank == 0 and state.step == 4:
                        torch.save(whole, checkpoint)
                say("commit", step=state.step, rank=rank, size=size, bits=bits(shards.state_dict()))
            if state.step == stops.get(size):
                say("ready", rank=rank, size=size)
                while True:
                    dist.all_reduce(torch.ones(1))
                    state.check_host_updates()
        return bits(shards.state_dict())


result = train(state)
info = state.statistics()
say("end", rank=hvd.rank(), bits=result, sizes=list(state.sizes), step=state.step, shard_bytes=info.shard_bytes,
    copy_bytes=info.copy_bytes, elements=sum(shard.elements for shard in shards._shards.values()))
group.close()
hvd.shutdown()
