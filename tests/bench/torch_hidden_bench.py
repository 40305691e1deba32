"""What commits that hide save of a training step, beside commits that wait, in turns, in one process.

python tests/bench/torch_hidden_bench.py [--threads 2] [--side 600] [--layers 4] [--batch 256] [--rounds 31]

Both commit at each step of a model with Adam. A round is four steps of each, after two that are not counted.
Printed: the step without a commit and with one that waits, and what hiding it saves: the median and the range
of the rounds.
"""

import argparse
import statistics
import time

import torch

import hvd.torch as hvd


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("threads", 2), ("side", 600), ("layers", 4), ("batch", 256), ("rounds", 31)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    hvd.init()
    torch.set_num_threads(given.threads)
    batch = torch.randn(given.batch, given.side)

    def made(hidden):
        model = torch.nn.Sequential(*[torch.nn.Linear(given.side, given.side) for _ in range(given.layers)])
        optimizer = torch.optim.Adam(model.parameters())
        return model, optimizer, hvd.elastic.TorchState(model, optimizer, hidden_commits=hidden)

    def step(model, optimizer, state, commits=True):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if commits:
            state.commit()
        return time.perf_counter() - began

    waits, hides = made(False), made(True)
    took = {"none": [], "waits": [], "hides": []}
    for turn in range(given.rounds):
        for name, one in (("waits", waits), ("hides", hides))[:: 1 if turn % 2 else -1]:
            took[name].append(statistics.mean([step(*one) for _ in range(6)][2:]))
            one[2]._end_hidden()
        took["none"].append(statistics.mean([step(*waits, commits=False) for _ in range(6)][2:]))
    saved = [1e3 * (a - b) for a, b in zip(took["waits"], took["hides"])]
    size = sum(parameter.numel() * 12 for parameter in waits[0].parameters()) >> 20
    plain, waiting = (1e3 * statistics.median(took[way]) for way in ("none", "waits"))
    print(f"{size} MiB, {given.threads} threads: a step takes {plain:.1f} ms, {waiting:.1f} with a commit "
          f"that waits; hiding it saves {statistics.median(saved):.2f} ms "
          f"({min(saved):.2f} to {max(saved):.2f})", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
