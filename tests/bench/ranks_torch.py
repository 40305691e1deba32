"""PyTorch's gloo backend as a contender: the same commands as ranks.c serves."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

CLOCK = time.CLOCK_MONOTONIC


def expected(count, size, summed):
    first = torch.arange(count, dtype=torch.int64).remainder(13).to(torch.float32)
    return first * size + 3.0 * (size * (size - 1) // 2) if summed else first


def main():
    rank, size, directory = int(sys.argv[1]), int(sys.argv[2]), os.environ["HVD_BENCH_DIRECTORY"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://%s/torch" % directory, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    calls = {"broadcast": dist.broadcast, "allreduce": lambda tensor, root: dist.all_reduce(tensor)}
    tensor, commands = None, open("%s/commands.%d" % (directory, rank))
    with open("%s/replies.%d" % (directory, rank), "w") as replies:
        print("ready", file=replies, flush=True)
        for line in commands:
            words = line.split()
            if words[0] == "quit":
                break
            if words[0] == "release":
                tensor = None
                print("ok", file=replies, flush=True)
                continue
            call, (count, samples, batch, warm, check) = calls[words[1]], map(int, words[2:])
            count //= 4
            if tensor is None or tensor.numel() != count:
                tensor = torch.zeros(count)
            if check:
                tensor.copy_(expected(count, 1, False) + 3.0 * rank)
                call(tensor, 0)
                if not torch.equal(tensor, expected(count, size, words[1] == "allreduce")):
                    raise SystemExit("rank %d: wrong result of %s" % (rank, words[1]))
                tensor.zero_()
            for _ in range(warm):
                call(tensor, 0)
            times = []
            for _ in range(samples):
                dist.barrier()
                times.append(time.clock_gettime_ns(CLOCK))
                for turn in range(batch):
                    call(tensor, turn % size)
                times.append(time.clock_gettime_ns(CLOCK))
            print("ok", *times, file=replies, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
