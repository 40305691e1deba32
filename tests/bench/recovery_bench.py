#!/usr/bin/env python3
"""Time from the SIGKILL of one of four local workers (or of as many as --workers says) to the first
collective that the survivors complete.

The killer stamps CLOCK_MONOTONIC just before kill(); each survivor stamps it when the first allreduce of the
next generation returns. No newcomer is started. usage: recovery_bench [--backend NAME,...]
[--memory MIB,...] [--state MIB,...] [--workers N,...] [--python] [--import MODULE] [--restores ROUNDS] [trials]
Each backend (default: auto, and mpi where its module is built) has a table of its own, and so has each size
of the memory that the killed worker holds, of the state, and of the job. With --state, "restore_over_copy" is the restore over
a plain copy of the state by as many processes as survive, in the same run. Then restore_bench compares the
restores of 256 MiB in all by three processes at once with memcpy by as many. The last line is a JSON object.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import time

WORKERS = 4
PHASES = ("detection", "abort", "restore", "forming", "connecting", "sync", "first_collective", "total")
BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))


class Job:
    """What is measured: a job of so many workers with so much state; the one to be killed holds `memory` MiB
    beside it."""

    def __init__(self, backend="auto", workers=WORKERS, memory=0, state=4):
        self.backend, self.workers, self.memory, self.state = backend, workers, memory, state
        self.python, self.imports = False, ""

    def command(self, victim):
        worker = "recovery_bench_python" if self.python else "recovery_bench_worker"
        variables = {
            "HVD_BACKEND": self.backend, "HVD_BENCH_MEMORY_MIB": self.memory,
            "HVD_BENCH_MEMORY_RANK": victim, "HVD_BENCH_STATE_MIB": self.state, "HVD_BENCH_IMPORT": self.imports
        }
        command = [os.path.join(BIN, "hvdrun"), "-np", str(self.workers), "--min-np", "2", "-H",
                   "localhost:%d" % self.workers, "--set", "restart=false"]
        for name, value in variables.items():
            command += ["-x", "%s=%s" % (name, value)]
        return command + [os.path.join(BIN, worker)]

    def __str__(self):
        return "%d workers%s, backend %s, %d MiB of state, %d MiB beside it" % (
            self.workers, " in Python" * self.python + (" with " + self.imports if self.imports else ""), self.backend, self.state, self.memory)


def copy_ms(processes, mib):
    """A plain copy of `mib` by each of so many processes, into memory that was touched before."""
    output = subprocess.run(
        [os.path.join(BIN, "growth_bench_worker"), "copy",
         str(processes), str(mib)], check=True, capture_output=True, text=True).stdout
    return json.loads(output)["copy"] / 1e6


def trial(generator, wanted):
    """{phase: ms} of the slowest survivor in each phase, the bytes synced, and whether all held the same
    commit."""
    kill_after = generator.randint(2, 30)
    victim = generator.randrange(wanted.workers)
    job = subprocess.Popen(wanted.command(victim), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    pids, first, recoveries, held, lines = {}, [], [], set(), []
    reports, killed = 0, None
    deadline = time.monotonic() + 120
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
            if killed is None and reports >= kill_after and len(pids) == wanted.workers:
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
    if job.returncode != 0 or len(first) != wanted.workers - 1 or len(recoveries) != wanted.workers - 1:
        raise SystemExit("a trial went wrong (status %s):\n%s" % (job.returncode, "\n".join(lines[-30:])))
    result = {phase: max(r[phase] for r in recoveries) / 1e6
              for phase in ("abort", "restore", "forming", "connecting", "sync")}
    result["detection"] = max(r["began_at"] - killed for r in recoveries) / 1e6
    result["total"] = (max(first) - killed) / 1e6
    result["first_collective"] = max(0.0,
                                     (max(first) - max(r["began_at"] + r["total"] for r in recoveries)) / 1e6)
    return result, sum(r["sync_bytes"] for r in recoveries), len(held) == 1


def has_module(name):
    return any(os.path.exists(os.path.join(path, "libhvd_%s.so" % name)) for path in (
        os.path.join(BIN, "..", "lib", "hvd", "1"), *os.environ.get("HVD_PLUGIN_PATH", "").split(":")))


def measure(wanted, trials):
    """What the trials showed, for the report; prints a table."""
    generator = random.Random(20261121)
    results, sync_bytes, agreed, ratios = [], 0, 0, []
    for _ in range(trials):
        result, moved, agree = trial(generator, wanted)
        results.append(result)
        agreed += agree
        sync_bytes += moved if agree else 0
        if wanted.state >= 64:
            ratios.append(result["restore"] / copy_ms(wanted.workers - 1, wanted.state))
    table = {}
    print("%-18s %10s %10s   (ms, %s, %d trials; the slowest survivor of each)" % (
        "phase", "median", "worst", wanted, trials))
    for phase in PHASES:
        values = [r[phase] for r in results]
        table[phase] = {"median_ms": round(statistics.median(values), 3), "worst_ms": round(max(values), 3)}
        print("%-18s %10.3f %10.3f" % (phase, table[phase]["median_ms"], table[phase]["worst_ms"]))
    report = {
        "trials": trials, "median_ms": table["total"]["median_ms"], "worst_ms": table["total"]["worst_ms"],
        "phases": table, "trials_that_agree": agreed, "sync_payload_bytes": sync_bytes
    }
    if ratios:
        report["restore_over_copy"] = {
            "median": round(statistics.median(ratios), 3), "low": round(min(ratios), 3),
            "high": round(max(ratios), 3)
        }
        print("restore over a plain copy: %(median).2f (%(low).2f .. %(high).2f)" %
              report["restore_over_copy"])
    print(
        "sync payload among survivors that agree (%d of %d trials): %d bytes" % (agreed, trials, sync_bytes),
        flush=True)
    return report


def restores_at_once(rounds):
    """What restore_bench prints: its rows pass, its objects are the report's."""
    output = subprocess.run([os.path.join(BIN, "restore_bench"), str(rounds)], check=True,
                            capture_output=True, text=True, timeout=900).stdout
    report = {}
    for line in output.splitlines():
        if line.startswith("{"):
            report.update(json.loads(line))
        else:
            print(line, flush=True)
    return report


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=20)
    parser.add_argument("--backend", default="")
    parser.add_argument("--memory", default="0,16,256,1024",
                        help="MiB that the killed worker holds, one table each")
    parser.add_argument("--state", default="", help="MiB of state, one table each: 256,1024")
    parser.add_argument("--workers", default="", help="workers, one table each: 8,16,32,64")
    parser.add_argument("--python", action="store_true", help="the workers are programs in Python")
    parser.add_argument("--import", dest="imports", default="", metavar="MODULE",
                        help="what each worker in Python loads first: torch")
    parser.add_argument("--restores", type=int, default=9, help="rounds of restores at once; 0: none")
    arguments = parser.parse_args()
    backends = [name for name in arguments.backend.split(",") if name]
    if not backends:
        backends = ["auto"] + (["mpi"] if has_module("mpi") else [])
        if "mpi" not in backends:
            print("recovery on mpi left out: libhvd_mpi.so is not built")
    jobs = {}
    for backend in backends:
        jobs["recovery_4_workers" + ("" if backend == "auto" else "_" + backend)] = Job(backend)
    first = backends[0]
    for mib in numbers(arguments.memory):
        if mib > 0:
            jobs["recovery_4_workers_of_%d_mib" % mib] = Job(first, memory=mib)
    for mib in numbers(arguments.state):
        jobs["recovery_4_workers_with_%d_mib" % mib] = Job(first, state=mib)
    for workers in numbers(arguments.workers):
        jobs["recovery_%d_workers" % workers] = Job(first, workers=workers)
    report = {}
    for name, job in jobs.items():
        job.python, job.imports = arguments.python, arguments.imports
        report[name + ("_python" if arguments.python else "")] = measure(job, arguments.trials)
    if arguments.restores > 0:
        report.update(restores_at_once(arguments.restores))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
