#!/usr/bin/env python3
"""How long hvdrun -H takes to the first collective with two remote hosts over ssh, beside `ssh HOST true`
twice in a row.

    start_bench.py [ROUNDS]      in the build directory; HVD_TEST_BIN and HVD_PLUGIN_PATH as for the scenarios; needs root
The hosts are network namespaces of this machine with sshds of their own; keys are made here. The rounds of
both alternate. The job's time ends when the last of two workers has done its first step, an allreduce.
"""

import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenarios"))
import test_ssh  # noqa: E402


class Round(test_ssh.Ssh):
    def runTest(self):
        pass


def one():
    test = Round()
    test.setUp()
    try:
        begun = []

        def before(job):
            begin = time.monotonic()
            for host in ("two", "three"):
                subprocess.run(
                    test.network.enter("one") + test.ssh.replace("{host}", host).split() + ["true"],
                    check=True, stdin=subprocess.DEVNULL)
            begun.extend((begin, time.monotonic()))
        job = test.job("two:1,three:1", ["steps=1"], np=2, before=before)
        job.wait("step", count=2)
        both, end = begun[1] - begun[0], time.monotonic()
        job.finish(0)
        return both, end - begun[1]
    finally:
        test.doCleanups()


def main(rounds):
    both, job = zip(*[one() for _ in range(rounds)])
    for name, times in (("ssh true, twice", both), ("hvdrun to its first collective", job)):
        print("%-32s %7.1f ms (%.1f to %.1f, n=%d)  %.2f of ssh true twice" % (
            name, *(1000 * t for t in (statistics.median(times), min(times), max(times))), rounds,
            statistics.median(times) / statistics.median(both)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
