"""libhvd through its Python binding as a contender: the same commands as ranks.c serves, on NumPy arrays."""

import mmap

import numpy as np

import hvd
from served import serve


def prepare(operation, size):
    if operation != "allreduce":
        raise SystemExit(f"no operation {operation}")
    array = np.frombuffer(mmap.mmap(-1, size), np.float32)  # the same memory as the others have

    def call(turn):
        hvd.allreduce_(array, "allreduce", hvd.Sum)

    def check():
        first = np.arange(array.size) % 13
        array[:] = first + 3 * hvd.rank()
        call(0)
        if not np.array_equal(array, first * hvd.size() + 3 * (hvd.size() * (hvd.size() - 1) // 2)):
            raise SystemExit(f"rank {hvd.rank()}: wrong result")
        array[:] = 0

    return call, check


def main():
    hvd.init()
    serve(hvd.rank(), lambda: hvd.barrier("start"), prepare)
    hvd.shutdown()


if __name__ == "__main__":
    main()
