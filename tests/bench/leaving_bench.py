#!/usr/bin/env python3
"""What a worker that leaves costs the others, beside one that is killed, with a spare and without.

    leaving_bench.py [ROUNDS]      in the build directory; HVD_TEST_BIN and HVD_PLUGIN_PATH as for the scenarios
Four workers (of C, some KiB of state) train with steps of 2 ms; one of them goes. The rounds of all ways
alternate. Told is the time in which the survivors do not train: the median, least and most over rounds and
survivors, the medians of its parts, and steps repeated.
"""

import os
import signal
import statistics
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenarios"))
from harness import Job  # noqa: E402

WAYS = {"leave": (signal.SIGTERM, 0), "kill": (signal.SIGKILL, 0), "kill, a spare": (signal.SIGKILL, 1),
        "leave, a spare": (signal.SIGTERM, 1)}

PARTS = ("detection", "abort", "restore", "forming", "connecting", "sync")  # as in hvd_recovery_info


class Round(unittest.TestCase):
    def runTest(self):
        pass


def one(way):
    test = Round()
    number, spares = WAYS[way]
    try:
        job = Job(test, "a:4,b:1", ["steps=400", "commit=5", "pace=2", "log=3", "term=1"], np=4, min_np=3,
                  max_np=4, options={"spares": spares, "join_settle": 0.01, "restart_delay_min": 0.01})
        victim = job.wait("train", rank=3)
        if spares:
            job.wait("log", msg=lambda text: "waits for a place" in text)
        job.wait("step", step=12)
        job.send_signal(victim, number)
        job.finish(0)
        first = [event for event in job.find("recovery") if event["from"] == 1]
        steps = [(event["pid"], event["step"]) for event in job.find("step")]
        sizes = {event["to_size"] for event in first}
        return first, (len(steps) - len(set(steps))) / max(1, len(first)), sizes
    finally:
        test.doCleanups()


def main(rounds):
    times, again, sizes, parts = ({way: [] for way in WAYS} for _ in range(4))
    for _ in range(rounds):
        for way in WAYS:
            found, repeated, size = one(way)
            times[way] += [event["total"] / 1e6 for event in found]
            parts[way] += found
            again[way].append(repeated)
            sizes[way] += size
    for way in WAYS:
        t = times[way]
        print(
            "%-16s %7.2f ms (%.2f to %.2f, n=%d)  %.2f of kill  repeated steps a survivor: %.1f  size after it: %s"
            % (way, statistics.median(t), min(t), max(t), len(t), statistics.median(t) /
               statistics.median(times["kill"]), statistics.mean(again[way]), sorted(set(sizes[way]))))
        print("%17s" % "" + "  ".join("%s %.2f" %
                                      (part, statistics.median(event[part] / 1e6 for event in parts[way]))
                                      for part in PARTS))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
