"""Chaos over real jobs: chaos.py --minutes N --seed S [--backends auto,gloo:off,...] [--json FILE]
(scripts/chaos.sh)

Jobs run under hvdrun, one after the other, each on hosts, a backend and a size of state that the seed
chooses, while faults of random kinds come at random moments: docs/chaos.md. After each fault the job has to
make progress within a deadline, and what training saw is checked then and at the end: the same numbers on
every rank, the state that the record of sizes gives, no committed step lost, no generation split, no process
and no file left.

One sentence and one JSON object (stdout, or FILE) say what was done and seen; exit status 1 if a promise was
broken.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import clocks
import harness
from chaos_faults import HEARTBEAT_TIMEOUT, HVDRUN, MAX_NP, PROGRESS_S, Faults
from harness import PATIENCE, Job

PACE_S = 0.01  # computing time of a step
MODULES = os.path.join(harness.BIN, "..", "lib", "hvd")
DELAYS = os.path.abspath(os.path.join(harness.BIN, "delays.so"))  # docs/chaos.md, "Delayed threads"

# What starts a worker. Host "odd" brings other options than the others, host "few" hardly any descriptor.
WRAPPER = """
case "$HVD_HOST" in
  odd) export HVD_LOCAL=$HVD_CHAOS_ODD ;;
  few) ulimit -n 8 ;;
esac
%s
exec "$0" "$@"
"""


class Broken(Exception):
    """A promise did not hold."""


class Ledger:
    """What harness.Job wants of a test."""

    def __init__(self):
        self.cleanups = []

    def addCleanup(self, function):
        self.cleanups.append(function)

    def fail(self, message):
        """Without the steps, of which there are thousands."""
        lines = [
            line for line in message.split("\n")
            if not re.search(r'"ev":"(step|commit|load|event_\w+)"', line)
        ]
        raise Broken("\n".join(lines[:3] + lines[3:][-40:]))


class Chaos(Faults):
    """One job and what befalls it."""

    def __init__(self, random_, backend, counts, seconds, faults, share_delayed):
        self.random = random_
        self.counts = counts
        self.seconds = seconds
        self.faults = []
        self.ledger = Ledger()
        self.stopped = {}
        self.doomed = set()  # processes that were killed
        self.going = set()   # those that were asked to leave
        self.drained = set()  # hosts
        self.scaled = MAX_NP
        self.deaths = []     # of drivers: when
        self.agents = {}
        name, _, local = backend.partition(":")
        self.clocks = None
        environment = {"HVD_BACKEND": name, "HVD_CHAOS_ODD": "off"}
        if local:
            environment["HVD_LOCAL"] = local
            environment["HVD_CHAOS_ODD"] = "on"
        self.hosts = {"a": random_.randint(1, 2), "b": random_.randint(1, 2), "c": 1}
        self.np = sum(self.hosts.values())
        self.steps = max(50, int(seconds / PACE_S))
        pad = random_.choice([0, 1 << 16, 1 << 20, 1 << 24])
        self.commit = random_.choice([1, 3, 10])
        self.full = self._full_disk() if random_.random() < 0.3 else None
        self.by_agents = random_.random() < 0.3
        self.faults = [
            f for f in faults if f.__name__ not in (self.OF_DISCOVERY if self.by_agents else self.OF_AGENTS)
        ]
        self.leaves = random_.random() < 0.5  # at SIGTERM, which is ignored otherwise
        spares = random_.choice([0, 0, 1])
        delayed = random_.random() < share_delayed
        seed = str(random_.randrange(1 << 32))
        self.delays = {"LD_PRELOAD": DELAYS, "HVD_DELAYS_SEED": seed} if delayed else {}
        environment.update(self.delays)
        self.folder = tempfile.mkdtemp(prefix="hvd-chaos-")
        self.ledger.addCleanup(lambda: shutil.rmtree(self.folder))
        if clocks.library():
            self.clocks = clocks.Clocks(os.path.join(self.folder, "clocks"), [DELAYS] if delayed else [])
            environment.update({**self.clocks.for_workers(), **self.clocks.environment("driver")})
        flags = ["--address-file", os.path.join(self.folder, "address")]
        if self.full:
            flags += ["--output-filename", self.full]
        more = {}
        if self.by_agents:
            self.secret = os.path.join(self.folder, "secret")
            with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write("x" * 40 + "\n")
            environment["HVD_SECRET_FILE"] = self.secret
            more = {"script": False, "prepare": lambda job: [HVDRUN, "--driver", "--listen", "127.0.0.1"]}
        self.title = "backend %s, %s, %d bytes, commit each %d%s%s%s%s%s" % (
            backend, ",".join("%s:%d" % host for host in self.hosts.items()), pad, self.commit,
            ", by agents" if self.by_agents else "", ", leaving" if self.leaves else "",
            ", a spare" if spares else "", ", a full disk for output" if self.full else "",
            ", delayed threads" if delayed else "")
        self.job = Job(
            self.ledger, None if self.by_agents else self._hosts(), [
                "steps=%d" % self.steps,
                "commit=%d" % self.commit,
                "pad=%d" % pad,
                "pace=%d" % (PACE_S * 1000), "term=1" if self.leaves else "noterm=1"
            ], np=self.np, min_np=1, max_np=MAX_NP, faults="sync_save:*/*/*/*/*/*=+gate(source)", flags=flags,
            options={
                "heartbeat_timeout": HEARTBEAT_TIMEOUT * PATIENCE, "join_settle": 0.2,
                "elastic_timeout": 60 * PATIENCE, "blocklist_after": 1000000, "restart_delay_max": 0.5,
                "spares": spares
            }, environment=environment, sink=True,
            wrapper=["/bin/sh", "-c", WRAPPER % (clocks.Clocks.WRAPPER if self.clocks else "")], **more)
        self.job.shown = 1000
        if self.by_agents:
            at = self.job.wait("hvdrun", text=harness.containing(r"listens at"), timeout=60)["text"]
            self.address = re.search(r"listens at (\S+),", at).group(1)
            for host in self.hosts:
                self.agent_comes(host)

    def said_by_agents(self):
        said = ""
        for host in self.agents:
            with open(os.path.join(self.folder, "agent." + host)) as file:
                said += "".join("\nagent of %s: %s" % (host, line.rstrip())
                                for line in file.readlines()[-10:])
        return said

    def agent_comes(self, host):
        with open(os.path.join(self.folder, "agent." + host), "a") as said:
            agent = subprocess.Popen([
                HVDRUN, "--join", self.address, "--host", host, "--slots",
                str(self.hosts[host]), "--secret-file", self.secret
            ], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={
                **{name: value for name, value in os.environ.items() if "PATH" in name},
                **self.delays, **(self.clocks.environment("agent." + host) if self.clocks else {})
            })
        self.agents[host] = agent

        def end():
            if agent.poll() is None:
                agent.kill()
            agent.wait()
        self.ledger.addCleanup(end)

    def _hosts(self):
        return ",".join("%s:%d" % host for host in sorted(self.hosts.items()))

    def _full_disk(self):
        """A folder on a file system without room; None where none can be mounted."""
        folder = tempfile.mkdtemp(prefix="hvd-chaos-full-")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        if not mounted:
            os.rmdir(folder)
            return None
        self.ledger.addCleanup(lambda:
                               (subprocess.run(["umount", "-l", folder], check=False), os.rmdir(folder)))
        return folder

    # ---- the job's course ----

    def run(self):
        self.job.wait("train", timeout=60)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and self.job.process.poll() is None:
            self.resume(time.monotonic())
            self.nap(0.05, 1.5)
            if self.job.find("done"):
                break
            mark = self.job.mark()
            fault = self.random.choice(self.faults)
            if fault(self):
                self.counts[fault.__name__] += 1
                self.progress(mark, fault.__name__)
                self.check()
        self.resume(float("inf"))
        if not self.by_agents:
            self.set_hosts({name: slots for name, slots in self.hosts.items() if name not in ("odd", "few")})
        while self.job.process.poll() is None and not self.job.find("done"):
            self.progress(self.job.mark(), "the last fault")  # as slowly as the machine may
            time.sleep(0.5)
        self.job.finish(0)
        self.job.verify(self.steps)

    def resume(self, now):
        for pid, (when, victim) in list(self.stopped.items()):
            if when <= now:
                del self.stopped[pid]
                self.doomed.add(pid)  # it may have been evicted: no holder of state to count on
                self.job.kill_if_alive(victim, signal.SIGCONT)

    def progress(self, mark, what):
        """Somebody has made a step since then, or the job is over."""
        deadline = time.monotonic() + PROGRESS_S
        while time.monotonic() < deadline:
            self.resume(time.monotonic())
            if self.job.find("step", since=mark) or self.job.find("done"):
                return
            if self.job.process.poll() is not None:
                if self.job.find("done"):
                    return
                self.job.fail("the job has ended after %s" % what)
            time.sleep(0.02)
        self.job.fail("no step in %g s after %s" % (PROGRESS_S, what))

    def check(self):
        self.job._verify_steps()
        self.job._verify_generations()
        aborted = self.job.find("hvdrun", text=harness.containing(r"SIGABRT|SIGSEGV|SIGBUS|SIGFPE|SIGILL"))
        self.job.check(not aborted, "a worker was ended by a signal that nobody sent")
        if self.clocks:
            wrong = self.clocks.wrong(self.job.find("step"))
            self.job.check(not wrong, "the clock of a worker is not what was set: %s" % wrong[:1])

    def close(self):
        for cleanup in reversed(self.ledger.cleanups):
            cleanup()

    # ---- what it cost ----

    def account(self):
        """Steps kept and made, commits, generations, seconds of training and what the kept steps would take
        alone."""
        steps = sorted(self.job.find("step"), key=lambda e: e["t"])
        if not steps:
            return collections.Counter()
        made = {(e["gen"], e["step"]) for e in steps}
        last = {}
        intervals = []
        for event in steps:
            if event["rank"] == 0:
                before = last.get(event["gen"])
                if before and before["step"] == event["step"] - 1:
                    intervals.append(event["t"] - before["t"])
                last[event["gen"]] = event
        kept = len({e["step"] for e in steps})
        usual = statistics.median(intervals) if intervals else 0
        return collections.Counter(
            jobs=1, generations=len(self.job.generations()), steps_kept=kept, steps_made=len(made),
            commits=len({(e["gen"], e["rev"]) for e in self.job.find("commit")}),
            wall_s=(steps[-1]["t"] - steps[0]["t"]) / 1e9, useful_s=kept * usual / 1e9)


def present(name):
    """Whether the module of a backend is built."""
    if name == "auto":
        return True
    places = [os.path.join(MODULES, version)
              for version in sorted(os.listdir(MODULES))] if os.path.isdir(MODULES) else []
    return any(os.path.exists(os.path.join(place, "libhvd_%s.so" % name)) for place in places)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backends", default="auto,tcp,gloo:off,tcp:off,mpi:off")
    parser.add_argument("--job-seconds", type=float, default=30)
    parser.add_argument("--json", help="file for the report; default: stdout")
    parser.add_argument("--job", type=int,
                        help="one job alone, by the number that its line of the report has")
    parser.add_argument("--delayed", type=float, default=0.25, help="share of jobs with delayed threads")
    parser.add_argument("--without", default="", help="faults to leave out, by name")
    arguments = parser.parse_args()
    without = arguments.without.split(",")
    if not clocks.library():
        print("left out: clock_jumps (no libfaketime: scripts/install-deps.sh chaos)", flush=True)
        without.append("clock_jumps")
    chosen = [f for f in Chaos.FAULTS if f.__name__ not in without]
    if arguments.delayed and not os.path.exists(DELAYS):
        parser.error("no %s: build the tests, or give --delayed 0" % DELAYS)
    backends = [b for b in arguments.backends.split(",") if present(b.partition(":")[0])]
    end = time.monotonic() + arguments.minutes * 60
    faults, totals, broken = collections.Counter(), collections.Counter(), []
    number, stopped = 0, False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while not stopped and (time.monotonic() < end or number == 0):
        seed = arguments.seed * 1000 + number
        if arguments.job is not None:
            seed, number, end = arguments.job, arguments.job % 1000, 0
        number += 1
        seconds = arguments.job_seconds
        if arguments.job is None:
            seconds = max(5.0, min(seconds, end - time.monotonic()))
        chaos = Chaos(random.Random(seed), backends[(number - 1) % len(backends)], faults, seconds, chosen,
                      arguments.delayed)
        began = time.monotonic()
        try:
            try:
                chaos.run()
            except Broken as error:
                raise Broken(str(error) + chaos.said_by_agents()) from None
            finally:
                totals += chaos.account()
                chaos.close()
            outcome = "ok"
        except Broken as error:
            broken.append({"job": seed, "what": chaos.title, "how": str(error)[:20000]})
            outcome = "BROKEN: " + str(error)[:4000]
        except KeyboardInterrupt:  # Ctrl-C, SIGTERM: the report is of what there was
            outcome, stopped = "stopped", True
        print("job %d (%s), %.0f s: %s" % (seed, chaos.title, time.monotonic() - began, outcome), flush=True)
    goodput = totals["useful_s"] / totals["wall_s"] if totals["wall_s"] else 0
    report = {
        "seed": arguments.seed, "minutes": arguments.minutes, "cores": os.cpu_count(),
        "load": os.getloadavg()[0], "backends": backends, "faults": dict(faults),
        "goodput": round(goodput,
                         4), "broken": broken, **{key: round(value, 1) for key, value in totals.items()}
    }
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    else:
        print(json.dumps(report))
    print("%d jobs, %d faults, %d generations, %d commits, %d of %d steps kept, goodput %.1f %%: %s" % (
        totals["jobs"], sum(faults.values()), totals["generations"], totals["commits"], totals["steps_kept"],
        totals["steps_made"], 100 * goodput, "%d broken" % len(broken) if broken else "every promise held"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
