#!/usr/bin/env python3
"""What an agent adds when one of its workers is lost, and what a host costs that is drained by its agent.

    agents_bench.py [ROUNDS]      in the build directory; HVD_TEST_BIN and HVD_PLUGIN_PATH as for the scenarios
Three workers of host localhost and one of host b (of C, some KiB of state) train with steps of 2 ms. The one
of b is killed, started by the driver itself or by an agent, or its agent gets SIGTERM. All are on this
machine. The rounds of all ways alternate. Told are, over rounds and survivors, the median, least and most of:
from the kill to the end of a survivor's next step, which is a collective; the time in which a survivor does
not train. And steps repeated.
"""

import os
import signal
import statistics
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenarios"))
from harness import BIN, Job  # noqa: E402

WAYS = ("killed, started by the driver", "killed, behind an agent", "drained by its agent")


class Round(unittest.TestCase):
    def runTest(self):
        pass


def parent(pid):
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def one(way):
    """(ms to the next step of each survivor, ms without training of each, repeated steps a survivor)."""
    test = Round()
    agents = way != WAYS[0]
    try:
        job = Job(
            test, "localhost:3,b:1", ["steps=400", "commit=5", "pace=2"], np=4, min_np=3, max_np=4,
            script=False, prepare=(
                lambda job:
                [os.path.join(BIN, "hvdrun"), "--agent", "env HVD_AGENT_OF={host}", "--listen", "127.0.0.1"])
            if agents else None,
            options={"local_hosts": 0 if agents else 1, "restart": "false", "join_settle": 0.01})
        victim = job.wait("train", host="b")
        job.wait("step", step=12)
        pid = parent(victim["pid"]) if way == WAYS[2] else victim["pid"]
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.kill(pid, signal.SIGTERM if way == WAYS[2] else signal.SIGKILL)
        job.finish(0)
        job.verify(400, workers=3)
        survivors = {event["pid"] for event in job.find("done")}
        after = [min(e["t"] for e in job.find("step", pid=pid, gen=2)) - begin for pid in survivors]
        pauses = [event["total"] for event in job.find("recovery") if event["pid"] in survivors]
        steps = [(event["pid"], event["step"]) for event in job.find("step")]
        return [t / 1e6 for t in after], [t / 1e6
                                          for t in pauses], (len(steps) - len(set(steps))) / len(survivors)
    finally:
        test.doCleanups()


def told(times):
    return "%6.2f ms (%.2f to %.2f, n=%d)" % (statistics.median(times), min(times), max(times), len(times))


def main(rounds):
    after, pauses, again = ({way: [] for way in WAYS} for _ in range(3))
    for _ in range(rounds):
        for way in WAYS:
            next_step, pause, repeated = one(way)
            after[way] += next_step
            pauses[way] += pause
            again[way].append(repeated)
    base_after, base_pause = (statistics.median(times[WAYS[0]]) for times in (after, pauses))
    for way in WAYS:
        print("%-30s without training %s, %.2f of the first; repeated steps a survivor %.1f" % (
            way, told(pauses[way]), statistics.median(pauses[way]) / base_pause, statistics.mean(again[way])))
        if way != WAYS[2]:  # it stays until the next commit
            print("%30s to the next step %s, %.2f of the first" %
                  ("", told(after[way]), statistics.median(after[way]) / base_after))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
