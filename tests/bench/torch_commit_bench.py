"""A commit of a model with Adam over a memcpy of the same bytes by as many threads, in turns, in one process.

hvdrun -np 1 -H localhost:1 -- python tests/bench/torch_commit_bench.py
build/release/tests/bench/libbench_call_loop.so [--rounds 21] [--million 9.5] [--layers 40] [--sharded]
[--hidden] [--json FILE]

Between two commits an Adam step changes every element, as training does; the step is not in the time. Each
side has memory of its own that was touched before. Printed: the ratio's median and range over the rounds.
--sharded: FSDP2 deals the model out (here to one rank), and each rank commits its rows, without copies.
--hidden: the commit is copied during a pause of three copies; the time is that of commit(), and of what is
left of it afterwards.
"""

import argparse
import ctypes
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

import hvd.torch as hvd


def network(layers, side):
    model = torch.nn.Sequential(*[torch.nn.Linear(side, side) for _ in range(layers)])
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def dealt_out(layers, side):
    from torch.distributed.fsdp import fully_shard

    model, _ = network(layers, side)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loops", help="libbench_call_loop.so")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--million", type=float, default=9.5, help="parameters")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    hvd.init()
    loops = ctypes.CDLL(given.loops)
    side = int((given.million * 1e6 / given.layers) ** 0.5)
    if given.sharded:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        shards = hvd.elastic.Sharded(lambda: dealt_out(given.layers, side), copies=0)
        state = hvd.elastic.TorchState(shards=shards, step=0, hidden_commits=given.hidden)
        model, optimizer = shards.deal()
    else:
        model, optimizer = network(given.layers, side)

    def step():
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.01)
        optimizer.step()
        optimizer.zero_grad()

    step()
    if not given.sharded:
        state = hvd.elastic.TorchState(model, optimizer, step=0, hidden_commits=given.hidden)
        state.sync()
    tensors = [*model.parameters()]
    for moments in optimizer.state.values():
        tensors += [moments["exp_avg"], moments["exp_avg_sq"]]
    tensors = [tensor.to_local().detach() if given.sharded else tensor for tensor in tensors]
    copies = [torch.empty_like(tensor).fill_(1) for tensor in tensors]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    threads = min(len(os.sched_getaffinity(0)), 16)

    def addresses(of):
        return (ctypes.c_void_p * len(of))(*[tensor.data_ptr() for tensor in of])

    sizes = (ctypes.c_size_t * len(tensors))(*[t.numel() * t.element_size() for t in tensors])
    to, source = addresses(copies), addresses(tensors)

    def copy():
        if loops.copy_all(to, source, sizes, len(tensors), threads):
            raise SystemExit("no threads")

    def timed(function):
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    def commit():
        state.commit()
        if given.hidden:
            begun = time.perf_counter()
            time.sleep(3 * pause)
            slept.append(time.perf_counter() - begun)
            state._end_hidden()

    slept, pause = [], 0
    for _ in range(3):  # so that all memory for commits is there
        step()
        commit()
    pause = min(timed(copy) for _ in range(3))
    calls = {"copy": copy, "commit": commit}
    ratios, rates, unchanged = [], [], []
    for turn in range(given.rounds):
        step()
        assert addresses(tensors)[:] == source[:]
        slept.clear()
        took = {name: timed(calls[name]) for name in (calls if turn % 2 else reversed(calls))}
        took["commit"] -= sum(slept)
        ratios.append(took["commit"] / took["copy"])
        rates.append(size / took["copy"] / 1e9)
    for _ in range(given.rounds):  # of their own: after one without a change the next reads everything twice
        slept.clear()
        took = {name: timed(calls[name]) for name in calls}
        took["commit"] -= sum(slept)
        unchanged.append(took["commit"] / took["copy"])
    del unchanged[0]
    found = {"megabytes": size / 1e6, "threads": threads}
    for name, values in (("commit", ratios), ("unchanged", unchanged)):
        found[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    print(f"{size / 1e6:.0f} MB in {len(tensors)} tensors, {threads} threads, "
          f"memcpy {statistics.median(rates):.1f} GB/s: " +
          ", ".join(f"{name} {r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f})"
                    for name, r in found.items() if isinstance(r, dict)), flush=True)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(found, file, indent=1)
    hvd.shutdown()
    if given.sharded:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
