"""PyTorch's gloo backend as a contender: the same commands as ranks.c serves."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

from served import serve

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])


def expected(count, size, summed):
    first = torch.arange(count, dtype=torch.int64).remainder(13).to(torch.float32)
    return first * size + 3.0 * (size * (size - 1) // 2) if summed else first


def prepare(operation, size):
    tensor = torch.zeros(size // 4)

    def broadcast(turn):
        dist.broadcast(tensor, turn % SIZE)

    def allreduce(turn):
        dist.all_reduce(tensor)

    call = {"broadcast": broadcast, "allreduce": allreduce}[operation]

    def check():
        tensor.copy_(expected(tensor.numel(), 1, False) + 3.0 * RANK)
        call(0)
        if not torch.equal(tensor, expected(tensor.numel(), SIZE, operation == "allreduce")):
            raise SystemExit(f"rank {RANK}: wrong result of {operation}")
        tensor.zero_()

    return call, check


def main():
    torch.set_num_threads(1)
    directory = os.environ["HVD_BENCH_DIRECTORY"]
    dist.init_process_group("gloo", init_method=f"file://{directory}/torch", rank=RANK, world_size=SIZE,
                            timeout=datetime.timedelta(seconds=60))
    serve(RANK, dist.barrier, prepare)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
