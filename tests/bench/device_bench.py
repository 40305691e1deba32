#!/usr/bin/env python3
"""What a commit of tensors on a GPU costs: device_bench [--mib N] [--rounds N]

Beside each other, in turns: a step of matrix products and an update of all parameters, alone; with a commit
after each; with hidden commits, which end before the update; with a copy into pinned memory that is waited
for (what a bare program does); with Horovod's way, a state_dict() copied by deepcopy() to the host. PyTorch
with a GPU, and NCCL, are needed. The last line is a JSON object.
"""

import argparse
import copy
import json
import statistics
import time

import torch

import hvd.torch as hvd

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--mib", type=int, default=1024)
arguments.add_argument("--rounds", type=int, default=7)
arguments.add_argument("--steps", type=int, default=5, help="of a round")
arguments.add_argument("--products", type=int, default=40, help="of a step")
options = arguments.parse_args()

hvd.init()
torch.cuda.set_device(0)
model = torch.nn.ParameterList(
    [torch.nn.Parameter(torch.randn(options.mib << 14, device="cuda")) for _ in range(16)])
state = hvd.elastic.TorchState(model=model, step=0)
begun = False
pinned = [torch.empty(p.shape, pin_memory=True) for p in model]
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)


def compute(end):
    b = a
    for _ in range(options.products):
        b = torch.mm(a, b).mul_(1e-2)
    end()
    with torch.no_grad():
        for p in model:
            p.mul_(0.999)


def begin():
    global begun
    state.commit_begin()
    begun = True


def end():
    global begun
    if begun:
        state.commit_end()
        begun = False


def pin():
    for room, p in zip(pinned, model):
        room.copy_(p.detach(), non_blocking=True)
    torch.cuda.synchronize()


def deep():
    {name: copy.deepcopy(value.cpu()) for name, value in model.state_dict().items()}


WAYS = {"alone": lambda: None, "commit": state.commit, "hidden": begin, "pinned": pin, "deepcopy": deep}
steps, calls = {way: [] for way in WAYS}, {way: [] for way in WAYS}
for number in range(options.rounds + 1):  # the first one warms up
    for way, keep in WAYS.items():
        state.commit()
        state.restore()  # waits for what the commit has begun
        torch.cuda.synchronize()
        began, inside = time.perf_counter(), 0.0
        for _ in range(options.steps):
            compute(end)
            at = time.perf_counter()
            keep()
            inside += time.perf_counter() - at
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        end()
        if number:
            steps[way].append(took / options.steps * 1e3)
            calls[way].append(inside / options.steps * 1e3)


def figure(values):
    return {
        "median_ms": round(statistics.median(values), 2), "low_ms": round(min(values), 2),
        "high_ms": round(max(values), 2)
    }


result = {"mib": options.mib, "device": torch.cuda.get_device_name(0)}
for way in WAYS:
    result[way] = {
        "step": figure(steps[way]), "call": figure(calls[way]),
        "step_over_alone": round(statistics.median(s / t for s, t in zip(steps[way], steps["alone"])), 3)
    }
    print(
        f"{way:9} step {result[way]['step']}  call {result[way]['call']}  over a step alone {result[way]['step_over_alone']}",
        flush=True)
print(json.dumps(result))
hvd.shutdown()
