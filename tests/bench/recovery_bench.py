#!/usr/bin/env python3
"""Time from the SIGKILL of one of four local workers to the first collective that the survivors complete.

The killer stamps CLOCK_MONOTONIC just before kill(); each survivor stamps it when the first allreduce of the
next generation returns. No newcomer is started. usage: recovery_bench [--backend NAME,...]
[--memory MIB,...] [trials]
Each backend (default: auto, and mpi where its module is built) has a table of its own, and so has each size of the workers' memory. The last line is a JSON object.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

WORKERS = 4
PHASES = ("detection", "abort", "restore", "forming", "connecting", "sync", "first_collective", "total")
BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))


def trial(generator, backend, mib):
    """{phase: ms} of the slowest survivor in each phase, the bytes synced, and whether all held the same commit."""
    command = [os.path.join(BIN, "hvdrun"), "-np", str(WORKERS), "--min-np", "2", "-H", "localhost:%d" % WORKERS,
               "--set", "restart=false", "-x", "HVD_BACKEND=" + backend, "-x", "HVD_BENCH_MEMORY_MIB=%d" % mib, os.path.join(BIN, "recovery_bench_worker")]
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    pids, first, recoveries, held, lines = {}, [], [], set(), []
    reports, killed = 0, None
    kill_after = generator.randint(2, 30)
    victim = generator.randrange(WORKERS)
    deadline = time.monotonic() + 60
    for raw in job.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        lines.append(line)
        if time.monotonic() > deadline:
            break
        found = re.search(r"\{.*\}$", line)
        if not found:
            continue
        event = json.loads(found.group(0))
        if "pid" in event:
            pids[event["rank"]] = event["pid"]
        elif "step" in event:
            reports += 1
            if killed is None and reports >= kill_after and len(pids) == WORKERS:
                killed = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                os.kill(pids[victim], signal.SIGKILL)
        elif "first" in event:
            first.append(event["first"])
        elif "holds" in event:
            held.add(event["holds"])
        elif "recovery" in event:
            recoveries.append(event["recovery"])
    if time.monotonic() > deadline:
        job.terminate()
    job.wait()
    if job.returncode != 0 or len(first) != WORKERS - 1 or len(recoveries) != WORKERS - 1:
        raise SystemExit("a trial went wrong (status %s):\n%s" % (job.returncode, "\n".join(lines[-30:])))
    result = {phase: max(r[phase] for r in recoveries) / 1e6
              for phase in ("abort", "restore", "forming", "connecting", "sync")}
    result["detection"] = max(r["began_at"] - killed for r in recoveries) / 1e6
    result["total"] = (max(first) - killed) / 1e6
    result["first_collective"] = max(0.0, (max(first) - max(r["began_at"] + r["total"] for r in recoveries)) / 1e6)
    return result, sum(r["sync_bytes"] for r in recoveries), len(held) == 1


def has_module(name):
    return any(os.path.exists(os.path.join(path, "libhvd_%s.so" % name)) for path in (
        os.path.join(BIN, "..", "lib", "hvd", "0"), *os.environ.get("HVD_PLUGIN_PATH", "").split(":")))


def measure(backend, trials, mib=0):
    """What the trials showed, for the report; prints a table."""
    generator = random.Random(20261121)
    results, sync_bytes, agreed = [], 0, 0
    for _ in range(trials):
        result, moved, agree = trial(generator, backend, mib)
        results.append(result)
        agreed += agree
        sync_bytes += moved if agree else 0
    table = {}
    print("%-18s %10s %10s   (ms, backend %s, %d MiB beside the state, %d trials; the slowest survivor of each)" % (
        "phase", "median", "worst", backend, mib, trials))
    for phase in PHASES:
        values = [r[phase] for r in results]
        table[phase] = {"median_ms": round(statistics.median(values), 3), "worst_ms": round(max(values), 3)}
        print("%-18s %10.3f %10.3f" % (phase, table[phase]["median_ms"], table[phase]["worst_ms"]))
    print("sync payload among survivors that agree (%d of %d trials): %d bytes" % (agreed, trials, sync_bytes), flush=True)
    return {"trials": trials, "median_ms": table["total"]["median_ms"], "worst_ms": table["total"]["worst_ms"],
            "phases": table, "trials_that_agree": agreed, "sync_payload_bytes": sync_bytes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=20)
    parser.add_argument("--backend", default="")
    parser.add_argument("--memory", default="0,16,256,1024", help="MiB that each worker holds, one table each")
    arguments = parser.parse_args()
    backends = [name for name in arguments.backend.split(",") if name]
    if not backends:
        backends = ["auto"] + (["mpi"] if has_module("mpi") else [])
        if "mpi" not in backends:
            print("recovery on mpi left out: libhvd_mpi.so is not built")
    report = {}
    for backend in backends:
        name = "recovery_4_workers" if backend == "auto" else "recovery_4_workers_" + backend
        report[name] = measure(backend, arguments.trials)
    for mib in [int(size) for size in arguments.memory.split(",") if int(size) > 0]:
        report["recovery_4_workers_of_%d_mib" % mib] = measure(backends[0], arguments.trials, mib)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
