#!/usr/bin/env python3
"""What the driver's death costs, beside rounds in which nothing dies.

    driver_death_bench.py [--rounds N] [--seconds S] [--pace MS] [--backend NAME,...]

In the build directory; HVD_TEST_BIN and HVD_PLUGIN_PATH as for the scenarios. Four workers (of C, some KiB of
state) train with steps of --pace ms (2) and commit each fifth one. The rounds of all ways alternate: nothing
dies; the driver; the driver of workers that two agents run; a worker; the driver and a worker in the same
moment; the driver, an agent and this agent's workers in the same moment. The figures are medians, least and
most over the rounds. --seconds: one more round that long without any driver (default: none). Each backend
(default: auto) has a table of its own.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenarios"))
from harness import HVDRUN, Job, containing  # noqa: E402

WAYS = ("nothing", "driver", "driver, agents", "worker", "driver and worker", "driver and host, agents")
WINDOW = 1e9  # ns after the death in which steps are looked at


class Training:
    """How long a step is, and how many there are: some before the death, two seconds of them after it."""

    def __init__(self, backend, pace):
        self.pace = pace
        self.before = max(10, round(300 / pace))
        self.steps = 5 * ((self.before + round(2100 / pace)) // 5 + 1)
        self.environment = {"HVD_BACKEND": backend}


class Round(unittest.TestCase):
    def runTest(self):
        pass


def start(test, way, training, steps=None, environment=None):
    worker = ["steps=%d" % (steps or training.steps), "commit=5", "pace=%g" % training.pace]
    environment = {**training.environment, **(environment or {})}
    named = dict(np=4, min_np=2, max_np=4, sink=True, options={"restart": "false", "job": "bench"})
    if "agents" not in way:
        return Job(test, "a:4", worker, environment=environment, **named)
    secret = "a secret of more than 32 characters, for benchmarks"
    job = Job(test, None, worker, script=False, environment={**environment, "HVD_SECRET": secret},
              prepare=lambda job: [HVDRUN, "--driver", "--listen", "127.0.0.1"], **named)
    address = job.wait("hvdrun", text=containing("listens at"))["text"].split("listens at ")[1].split(",")[0]
    for host in ("a", "b"):
        agent = subprocess.Popen([HVDRUN, "--join", address, "--host", host, "--slots", "2"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL,
                                 env={"PATH": os.environ["PATH"], "HVD_SECRET": secret, **environment})
        test.addCleanup(lambda agent=agent: (agent.kill() if agent.poll() is None else None, agent.wait()))
        job.last_agent = agent
    return job


def durations(job, since, until):
    """Of steps that ended in this time, by worker, in ns."""
    before, found = {}, []
    for event in job.find("step"):
        last = before.get(event["pid"])
        before[event["pid"]] = event["t"]
        if last is not None and since <= event["t"] and last <= until:
            found.append(event["t"] - last)
    return found


def one(way, training):
    test = Round()
    try:
        job = start(test, way, training)
        victim = job.wait("train", rank=3)
        job.wait("step", step=training.before, count=4)
        driver = job.driver()
        at = time.monotonic_ns()
        if "driver" in way:
            os.kill(driver, signal.SIGKILL)
        if "worker" in way:
            job.send_signal(victim, signal.SIGKILL)
        if "host" in way:
            job.last_agent.kill()
            for event in job.find("train", host="b"):
                job.kill_if_alive(event)
        job.finish(0)
        steps = [(event["pid"], event["step"]) for event in job.find("step")]
        seen = {
            "repeated": len(steps) - len(set(steps)),
            "lost": sum(training.steps - len({s for p, s in steps if p == e["pid"]}) for e in job.find("done")),
            "restarted": len(job.find("start")) - 4,
        }
        if "worker" in way or "host" in way:
            seen["next"] = (min(e["t"] for e in job.find("step", gen=2)) - at) / 1e6
        else:
            usual = durations(job, 0, at)
            seen["median"] = statistics.median(usual) / 1e6
            seen["longest"] = max(durations(job, at, at + WINDOW)) / 1e6
            seen["ratio"] = seen["longest"] / seen["median"]
        if way in ("driver", "driver, agents"):
            seen["back"] = (max(e["t"] for e in job.find("event_driver_back")) - at) / 1e6
        return seen
    finally:
        test.doCleanups()


def alone(length, training):
    """So long without any driver: who would start another one is stopped."""
    test = Round()
    try:
        steps = int(length / training.pace * 1000) + 3000
        job = start(test, "driver", training, steps, {"HVD_DRIVER_TIMEOUT": "%g" % (2 * length + 60)})
        job.keep("step", "start", "done", "hvdrun", "event_driver_back", "event_driver_lost")
        job.wait("step", step=training.before, count=4)
        driver = job.driver()
        os.kill(job.process.pid, signal.SIGSTOP)
        os.kill(driver, signal.SIGKILL)
        at = time.monotonic_ns()
        time.sleep(length)
        until = time.monotonic_ns()
        os.kill(job.process.pid, signal.SIGCONT)
        job.wait("event_driver_back", count=4)
        job.finish(0, timeout=600)
        all_steps = [(e["pid"], e["step"]) for e in job.find("step")]
        usual, without = durations(job, 0, at), durations(job, at, until)
        print(
            "%g s without a driver: %d steps of each worker, %d repeated, %d workers restarted; median step %.2f ms before, "
            "%.2f ms without; longest %.1f ms" %
            (length, len(without) // 4, len(all_steps) - len(set(all_steps)), len(job.find("start")) - 4,
             statistics.median(usual) / 1e6, statistics.median(without) / 1e6, max(without) / 1e6))
    finally:
        test.doCleanups()


def figures(values, form="%.1f"):
    text = form + " (" + form + " to " + form + ")"
    return text % (statistics.median(values), min(values), max(values))


def table(rounds, length, training):
    found = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(one(way, training))
    for way in WAYS:
        rows = found[way]
        print("%s: %d rounds; steps repeated %s, lost %s; workers restarted %s" % (
            way, len(rows), *(max(row[key] for row in rows) for key in ("repeated", "lost", "restarted"))))
        for key, meaning in (("median", "median step, ms"),
                             ("longest", "longest step in the second after, ms"), ("ratio",
                                                                                   "longest to median step"),
                             ("back", "until all workers have the next driver, ms"),
                             ("next", "until the next collective, ms")):
            if key in rows[0]:
                print("    %s: %s" % (meaning, figures([row[key] for row in rows])))
    if length:
        alone(length, training)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--pace", type=float, default=2)
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    for backend in arguments.backend.split(","):
        print("backend %s, steps of %g ms" % (backend, arguments.pace), flush=True)
        table(arguments.rounds, arguments.seconds, Training(backend, arguments.pace))


if __name__ == "__main__":
    main()
