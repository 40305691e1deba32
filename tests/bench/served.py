"""The commands of ranks.c, for contenders whose ranks are programs in Python."""

import os
import time

CLOCK = time.CLOCK_MONOTONIC


def by_name(*operations):
    """prepare() for functions that give a call for a size; nothing checks the results."""
    named = {each.__name__: each for each in operations}
    return lambda operation, size: (named[operation](size), None)


class Steps:
    """Of a worker that trains elastically: a line a step, when it ended, of how many ranks. There is a file
    `stop` when it is to end."""

    def __init__(self):
        self.directory = os.environ["HVD_BENCH_DIRECTORY"]
        self.log = open(f"{self.directory}/steps.{os.getpid()}", "w", buffering=1)

    def made(self, size, rank):
        print(time.clock_gettime_ns(CLOCK), size, rank, file=self.log)

    def enough(self):
        return os.path.exists(f"{self.directory}/stop")


def serve(rank, barrier, prepare):
    """Answers commands until `quit`. prepare(operation, bytes) gives call and check, which are kept until
    `release`: call(turn) does the operation once; check() ends the program if its result is wrong, or is
    None."""
    directory, prepared = os.environ["HVD_BENCH_DIRECTORY"], {}
    with open(f"{directory}/commands.{rank}") as commands, open(f"{directory}/replies.{rank}",
                                                                "w") as replies:
        print("ready", file=replies, flush=True)
        for line in commands:
            words = line.split()
            if words[0] == "quit":
                break
            if words[0] == "release":
                prepared.clear()
                print("ok", file=replies, flush=True)
                continue
            key = operation, size = words[1], int(words[2])
            samples, batch, warm, checked = map(int, words[3:])
            if key not in prepared:
                prepared[key] = prepare(operation, size)
            call, check = prepared[key]
            if checked and check is not None:
                check()
            for _ in range(warm):
                call(0)
            times = []
            for _ in range(samples):
                barrier()
                times.append(time.clock_gettime_ns(CLOCK))
                for turn in range(batch):
                    call(turn)
                times.append(time.clock_gettime_ns(CLOCK))
            print("ok", *times, file=replies, flush=True)
