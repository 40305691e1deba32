"""Steps per second of three small models: DistributedOptimizer beside torch's DDP over Gloo, in turns, in the
same workers.

hvdrun -np 2 -H localhost:2 -- python tests/bench/ddp_bench.py [--rounds 15] [--seconds 0.4] [--json FILE]

A round is of each way as many steps as last about so long, one way after the other, and the order changes
from round to round. Printed on rank 0: how many times DDP's steps per second, median and range over the
rounds; also of DDP over backend hvd. PyTorch is needed; each worker computes with one thread.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import hvd.torch as hvd
from hvd.torch import distributed  # noqa: F401 - backend hvd


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def cnn():
    nn = torch.nn
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 48), nn.ReLU(), nn.Linear(48, 10))


MODELS = {
    "MLP 0.27 M": lambda: mlp(784, 256, 256, 10), "CNN 0.08 M": cnn,
    "MLP 5.8 M": lambda: mlp(784, 2048, 2048, 10)
}


def ways(make, groups):
    """By name: a function that makes one step."""
    torch.manual_seed(1)
    inputs, targets = torch.randn(32, 784), torch.randint(0, 10, (32,))

    def stepper(model, forward, optimizer):
        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(forward(inputs), targets).backward()
            optimizer.step()

        return model, step

    made = {}
    for name, group in groups.items():
        torch.manual_seed(2)
        model = make()
        parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        made[name] = stepper(model, parallel, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    torch.manual_seed(2)
    model = make()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    made["hvd"] = stepper(model, model, hvd.DistributedOptimizer(optimizer, model.named_parameters()))
    return made


def timed(step, count):
    hvd.barrier()
    began = time.perf_counter()
    for _ in range(count):
        step()
    hvd.barrier()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    # Gloo is DDP's default group, as in a script of its own; hvd's is one more.
    meeting = hvd.broadcast_object(tempfile.mktemp(prefix="hvd-ddp-bench.") if hvd.rank() == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=hvd.rank(), world_size=hvd.size())
    groups = {"DDP, gloo": None, "DDP, hvd": dist.new_group(backend="hvd")}
    found = {}
    for name, make in MODELS.items():
        steps = ways(make, groups)
        parameters = sum(p.numel() for p in steps["hvd"][0].parameters())
        count = 0
        for _, step in steps.values():
            timed(step, 20)
            count = max(count, int(given.seconds / (timed(step, 20) / 20)))
        count = hvd.broadcast_object(max(count, 5))
        ratios = {way: [] for way in steps if way != "DDP, gloo"}
        rates = []
        for turn in range(given.rounds):
            order = list(steps) if turn % 2 == 0 else list(steps)[::-1]
            took = {way: timed(steps[way][1], count) for way in order}
            rates.append(count / took["DDP, gloo"])
            for way, list_ in ratios.items():
                list_.append(took["DDP, gloo"] / took[way])
        # All ways have made the same steps.
        totals = [
            sum(float(p.detach().double().sum()) for p in model.parameters()) for model, _ in steps.values()
        ]
        assert max(totals) - min(totals) < 1e-2 * max(1.0, abs(totals[0])), totals
        found[name] = {way: {"median": statistics.median(list_), "min": min(list_), "max": max(list_)}
                       for way, list_ in ratios.items()}
        if hvd.rank() == 0:
            row = " | ".join(f"{way}: {r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f})"
                             for way, r in found[name].items())
            print(f"{name} ({parameters} parameters), {count} steps a round, DDP over gloo "
                  f"{statistics.median(rates):.0f} steps/s | {row}", flush=True)
    dist.destroy_process_group()
    if hvd.rank() == 0:
        if os.path.exists(meeting):
            os.unlink(meeting)
        if given.json:
            with open(given.json, "w") as file:
                json.dump(found, file, indent=1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
