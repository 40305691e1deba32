#!/usr/bin/env python3
"""Time from hvdrun to the first allreduce of all workers, and from the SIGKILL of one to the next one of the
others.

All workers are on this machine: by shared memory ("shared"), and as if each were on a host of its own
("tcp"). usage: scale_bench [size ...]   (default: 16 64 128). The last line is a JSON object.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))
WAYS = {"shared": [], "tcp": ["--backend", "tcp", "-x", "HVD_LOCAL=off"]}
PATIENCE = 120  # seconds


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def trial(size, way):
    """(seconds to the first allreduce, seconds from the kill to the next)"""
    command = [os.path.join(BIN, "hvdrun"), "-np", str(size), "--min-np", "2", "-H", "localhost:%d" % size,
               "--set", "restart=false", *WAYS[way], "-x", "HVD_BENCH_GENERATIONS=2",
               os.path.join(BIN, "scale_bench_worker")]
    began, killed = now(), None
    at, pids, lines = {1: [], 2: []}, {}, []
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    patience = threading.Timer(PATIENCE, job.terminate)
    patience.start()
    for raw in job.stdout:
        lines.append(raw.decode("utf-8", "replace").rstrip())
        found = re.search(r"\{.*\}$", lines[-1])
        event = json.loads(found.group(0)) if found else {}
        if "at" not in event:
            continue
        at.setdefault(event["generation"], []).append(event["at"])
        if event["generation"] == 1:
            pids[event["rank"]] = event["pid"]
        if killed is None and len(pids) == size:
            killed = now()
            os.kill(pids[size // 2], signal.SIGKILL)
    job.wait()
    patience.cancel()
    if job.returncode != 0 or len(at[1]) != size or len(at[2]) != size - 1:
        raise SystemExit("%d workers, %s: status %s\n%s" %
                         (size, way, job.returncode, "\n".join(lines[-20:])))
    return (max(at[1]) - began) / 1e9, (max(at[2]) - killed) / 1e9


def main():
    sizes = [int(text) for text in sys.argv[1:]] or [16, 64, 128]
    report = {}
    print("%7s %8s %14s %14s" % ("workers", "way", "first, s", "after a loss, s"))
    for size in sizes:
        for way in WAYS:
            first, again = trial(size, way)
            print("%7d %8s %14.3f %14.3f" % (size, way, first, again), flush=True)
            report["scale_%d_%s" %
                   (size, way)] = {"first_s": round(first, 3), "after_loss_s": round(again, 3)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
