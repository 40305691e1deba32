#!/usr/bin/env python3
"""How long two workers stand still when others join them: a state of some size goes to each newcomer.

The stop is the time from a survivor's HVD_HOSTS_UPDATED to the return of its first collective at the new
size. It is set beside a plain copy of the same bytes by as many processes as have come, out of one memory
into memory that was touched before. usage: growth_bench [--memory MIB,...] [--from N] [--to N,...] [--change
N] [--option NAME=VALUE] [--spare] [--python] [trials] With --python each trial is run by workers in Python,
too, and "python_over_c" is the stop of theirs over the other's. With --spare nobody joins: one of the workers
is killed and a spare takes its place. "next" is the time from the kill to the first collective of those that
were left, at the same size. With --set HVD_BENCH_LOOPS=N a step computes so many times as long, and steps
without a commit are told by themselves, over the median of those before anybody came: the longest of these,
and median, 90th percentile and longest while newcomers start and while they wait for a place, fed. The last
line is a JSON object.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time

BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))
WORKER, PYTHON = (os.path.join(BIN, "growth_bench_" + kind) for kind in ("worker", "python"))


def copy_ms(processes, mib):
    """A plain copy of `mib` by each of so many processes."""
    output = subprocess.run([WORKER, "copy", str(processes), str(mib)], check=True, capture_output=True,
                            text=True).stdout
    return json.loads(output)["copy"] / 1e6


def hosts_file(path, slots):
    with open(path + ".new", "w") as f:
        f.write("localhost:%d\n" % slots)
    os.rename(path + ".new", path)


def trial(mib, first, last, settings, options, worker=WORKER):
    """What one job shows: times in ms."""
    with tempfile.TemporaryDirectory() as directory:
        hosts = os.path.join(directory, "hosts")
        hosts_file(hosts, first)
        script = os.path.join(directory, "discover")
        with open(script, "w") as f:
            f.write("#!/bin/sh\ncat %s\n" % hosts)
        os.chmod(script, 0o755)
        command = [
            os.path.join(BIN, "hvdrun"), "-np",
            str(first), "--min-np",
            str(first), "--max-np",
            str(last), "--host-discovery-script", script, "--set", "discovery_interval=0.1", "-x",
            "HVD_BENCH_MEMORY_MIB=%d" % mib, "-x",
            "HVD_BENCH_FIRST_SIZE=%d" % first, "-x",
            "HVD_BENCH_LAST_SIZE=%d" % last, "-x",
            "HVD_BENCH_GROWN=%s" % (hosts + ".grown")
        ]
        if worker == PYTHON:  # interpreters do not start together
            command += ["--set", "join_settle=3"]
        for option in options:
            command += ["--set", option]
        for name, value in settings.items():
            command += ["-x", "%s=%s" % (name, value)]
        job = subprocess.Popen(command + [worker], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
        lines, stops, recoveries, steps, phases, sums = [], [], [], [], {}, set()
        grown, deadline = False, time.monotonic() + 120
        for raw in job.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            lines.append(line)
            if time.monotonic() > deadline:
                job.terminate()
            found = re.search(r"\{.*\}$", line)
            if not found:
                continue
            event = json.loads(found.group(0))
            if "stop" in event:
                stops.append(event["stop"])
            elif "recovery" in event:
                recoveries.append(event["recovery"])
            elif "phase" in event:
                phases.setdefault(event["phase"], []).append(event)
            elif "median" in event:
                steps.append(event)
            elif "sum" in event:
                sums.add((event["sum"], event["at"]))
            elif "step" in event and not grown and event["step"] >= 100:
                grown = True
                open(hosts + ".grown", "w").close()
                hosts_file(hosts, last)
        job.wait()
    if job.returncode != 0 or len(stops) != first or len(sums) != 1 or len(recoveries) < first:
        raise SystemExit("a trial went wrong (status %s, sums %s):\n%s" %
                         (job.returncode, sums, "\n".join(lines[-40:])))
    result = {phase: max(r[phase] for r in recoveries) / 1e6 for phase in ("forming", "connecting", "sync")}
    result["stop"] = max(stops) / 1e6
    result["step_median"] = max(s["median"] for s in steps) / 1e6
    result["step_p99"] = max(s["p99"] for s in steps) / 1e6
    result["step_longest"] = max(s["longest"] for s in steps) / 1e6
    alone = [worker["median"] for worker in phases.get("alone", [])]
    for phase, workers in phases.items() if alone else ():
        for name in ("median", "p90", "longest"):
            result["%s_%s_over_alone" % (phase, name)] = max(w[name] for w in workers) / max(alone)
    return result


def replacement(mib, size, settings, options):
    """A worker is killed when the spare has been fed: times in ms."""
    command = [
        os.path.join(BIN, "hvdrun"), "--verbose", "-np",
        str(size), "--min-np",
        str(size), "--max-np",
        str(size), "-H",
        "localhost:%d" % (size + 1), "--set", "spares=1", "--set", "restart=false", "-x",
        "HVD_BENCH_MEMORY_MIB=%d" % mib, "-x",
        "HVD_BENCH_FIRST_SIZE=%d" % size, "-x",
        "HVD_BENCH_LAST_SIZE=%d" % size, "-x", "HVD_BENCH_REPLACED=1"
    ]
    for option in options:
        command += ["--set", option]
    for name, value in settings.items():
        command += ["-x", "%s=%s" % (name, value)]
    job = subprocess.Popen(command + [WORKER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    lines, pids, stops, recoveries, spares = [], {}, [], [], set()
    fed, killed, deadline = "feed_timeout=0" in options, None, time.monotonic() + 120
    for raw in job.stdout:
        line = raw.decode("utf-8", "replace").rstrip()
        lines.append(line)
        fed = fed or "was fed" in line
        if time.monotonic() > deadline:
            job.terminate()
        found = re.search(r"\{.*\}$", line)
        event = json.loads(found.group(0)) if found else {}
        if "pid" in event:
            pids.setdefault(event["rank"], event["pid"])
        elif "stop" in event:
            stops.append(event)
        elif "recovery" in event:
            recoveries.append(event["recovery"])
        elif "spares" in event:
            spares.add(event["spares"])
        elif event.get("step", 0) >= 300 and fed and killed is None:
            killed = time.monotonic_ns()
            os.kill(pids[size - 1], signal.SIGKILL)
    job.wait()
    if job.returncode != 0 or len(stops) != size - 1 or 1 not in spares:
        raise SystemExit("a trial went wrong (status %s):\n%s" % (job.returncode, "\n".join(lines[-40:])))
    result = {phase: max(r[phase] for r in recoveries) / 1e6 for phase in ("forming", "connecting", "sync")}
    result["next"] = max(s["now"] - killed for s in stops) / 1e6
    return result


def spread(values):
    return {
        "median": round(statistics.median(values), 3), "low": round(min(values), 3),
        "high": round(max(values), 3)
    }


def measure(mib, first, last, trials, settings, options, python):
    results, ratios, copies, in_python, over_c = [], [], [], [], []
    for _ in range(trials):
        copies.append(copy_ms(last - first, max(1, mib)))
        results.append(trial(mib, first, last, settings, options))
        ratios.append(results[-1]["stop"] / copies[-1])
        if python:
            in_python.append(trial(mib, first, last, settings, options, PYTHON))
            over_c.append(in_python[-1]["stop"] / results[-1]["stop"])
    phases = [phase for phase in results[0] if all(phase in r for r in results)]
    table = {phase: spread([r[phase] for r in results]) for phase in phases}
    table["copy"] = spread(copies)
    table["stop_over_copy"] = spread(ratios)
    if python:
        for phase in ("stop", "forming", "connecting", "sync"):
            table["python_" + phase] = spread([r[phase] for r in in_python])
        table["python_over_c"] = spread(over_c)
    show("%d -> %d with %d MiB, %d trials (ms; the slowest survivor)" % (first, last, mib, trials), table)
    return table


def show(title, table):
    print(title)
    for phase, values in table.items():
        print("  %-26s %9.2f (%.2f .. %.2f)" % (phase, values["median"], values["low"], values["high"]),
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=5)
    parser.add_argument("--memory", default="0,256,512", help="MiB of state")
    parser.add_argument("--from", dest="first", type=int, default=2)
    parser.add_argument("--to", default="4,3")
    parser.add_argument("--change", type=int, default=32,
                        help="of 32 tensors, those that each step writes to")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="environment of the workers")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the driver")
    parser.add_argument("--spare", action="store_true")
    parser.add_argument("--python", action="store_true")
    arguments = parser.parse_args()
    settings = dict(item.split("=", 1) for item in arguments.set)
    settings["HVD_BENCH_CHANGE"] = arguments.change
    report = {}
    if arguments.spare:
        for mib in [int(size) for size in arguments.memory.split(",")]:
            results = [
                replacement(mib, arguments.first, settings, arguments.option) for _ in range(arguments.trials)
            ]
            table = report["spare_of_%d_%d_mib" % (arguments.first, mib)] = {
                phase: spread([r[phase] for r in results]) for phase in results[0]}
            show(
                "a spare takes one of %d workers' place, %d MiB, %d trials (ms)" %
                (arguments.first, mib, arguments.trials), table)
        return print(json.dumps(report))
    for last in [int(n) for n in arguments.to.split(",")]:
        for mib in [int(size) for size in arguments.memory.split(",")]:
            report["growth_%d_to_%d_%d_mib" % (arguments.first, last, mib)] = measure(
                mib, arguments.first, last, arguments.trials, settings, arguments.option, arguments.python)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
