"""libhvd through its Python binding as a contender: the same commands as ranks.c serves, on NumPy arrays."""

import mmap
import os
import time

import numpy as np

import hvd

CLOCK = time.CLOCK_MONOTONIC


def main():
    hvd.init()
    rank, size, directory = hvd.rank(), hvd.size(), os.environ["HVD_BENCH_DIRECTORY"]
    array = None
    with open("%s/commands.%d" % (directory, rank)) as commands, open("%s/replies.%d" % (directory, rank),
                                                                      "w") as replies:
        print("ready", file=replies, flush=True)
        for line in commands:
            words = line.split()
            if words[0] == "quit":
                break
            if words[0] == "release":
                array = None
                print("ok", file=replies, flush=True)
                continue
            count, samples, batch, warm, check = map(int, words[2:])
            if words[1] != "allreduce":
                raise SystemExit("no operation %s" % words[1])
            count //= 4
            if array is None or array.size != count:
                array = np.frombuffer(mmap.mmap(-1, 4 * count),
                                      np.float32)  # the same memory as the others have
            if check:
                first = np.arange(count) % 13
                array[:] = first + 3 * rank
                hvd.allreduce_(array, "allreduce", hvd.Sum)
                if not np.array_equal(array, first * size + 3 * (size * (size - 1) // 2)):
                    raise SystemExit("rank %d: wrong result" % rank)
                array[:] = 0
            for _ in range(warm):
                hvd.allreduce_(array, "allreduce", hvd.Sum)
            times = []
            for _ in range(samples):
                hvd.barrier("start")
                times.append(time.clock_gettime_ns(CLOCK))
                for _ in range(batch):
                    hvd.allreduce_(array, "allreduce", hvd.Sum)
                times.append(time.clock_gettime_ns(CLOCK))
            print("ok", *times, file=replies, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
