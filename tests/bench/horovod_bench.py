"""Horovod and libhvd beside each other: one script for Horovod, with either package.

HVD_BENCH_BIN=build/release/bin PYTHON tests/bench/horovod_bench.py [--framework torch|tensorflow]
    [--rounds 9] [--turns 5] [--json FILE]

PYTHON has the framework and Horovod (pip builds it: HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1). Two ranks
that horovodrun starts, over Gloo and, if Horovod has it, over MPI; the contenders take turns in rounds. Then
jobs of two workers that train elastically, in turns: a worker is killed, and the time until the other has
made its next step is taken; or a host is added, and the time until three have made a step, and the longest
step of those that were there. Printed: Horovod's time over libhvd's, median and range over the rounds.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import contenders
import psutil  # which Horovod needs, too
from collective_bench import Call, take_turns

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KIB, MIB = 1 << 10, 1 << 20
# Operation, size or width, samples a round, calls a sample.
PLAN = [("allreduce", 8, 10, 20), ("allreduce", MIB, 10, 5), ("allreduce", 64 * MIB, 3, 1),
        ("grouped", 200 * 4 * KIB, 10, 5), ("variables", 100 * MIB, 3, 1), ("step", 256, 10, 10),
        ("step", 2048, 5, 2), ("commit", 2048, 5, 2)]
DEADLINE_S = 120


def ours():
    """Variables of a job with this project's packages."""
    bin = Path(contenders.BIN)
    return {
        "PYTHONPATH": os.pathsep.join(str(ROOT / "bindings" / name) for name in ("horovod", "python")),
        "HVD_LIBRARY": str(bin.parent / "lib"),
        "HVD_PLUGIN_PATH": str(bin.parent / "lib/hvd/1"),
        "PATH": os.pathsep.join([str(bin), os.environ["PATH"]])
    }


WAYS = {
    "libhvd": (ours(), ()),
    "Horovod, Gloo": ({}, ("--gloo", "--network-interfaces", "lo")),
    "Horovod, MPI": ({}, ("--mpi", "--mpi-args=--allow-run-as-root --oversubscribe --bind-to none"))
}


def command(options, *script):
    return [
        sys.executable, "-m", "horovod.runner.launch", *options, sys.executable, "-B",
        str(HERE / f"ranks_horovod_{given.framework}.py"), *script
    ]


class Ranks(contenders.Group):
    """Horovod's ranks exchange messages every millisecond whether or not there is something to do. So they
    stand still while others are measured."""

    def _replies(self, seconds, word):
        found = super()._replies(seconds, word)
        self._signal(signal.SIGSTOP)
        return found

    def _tell(self, text):
        self._signal(signal.SIGCONT)
        super()._tell(text)

    def _signal(self, number):
        if self.name != "libhvd":
            for process in psutil.Process(self.processes[0].pid).children(recursive=True):
                process.send_signal(number)


def calls():
    """{what: {way: [median us of each round]}}"""
    found, groups = {}, {}
    try:
        for way, (environment, options) in WAYS.items():
            environment = {"OMP_NUM_THREADS": "1", **environment}
            argv = command(["-np", "2", "-H", "localhost:2", *options])
            try:
                groups[way] = Ranks(way.replace(", ", "-"), 2, lambda _: [(argv, environment)])
            except contenders.Failed as why:
                if way != "Horovod, MPI":
                    raise
                print(f"without {way}: {why}", flush=True)
        for operation, size, samples, batch in PLAN:
            turns = {way: Call(group, operation, size, samples, batch) for way, group in groups.items()}
            found[f"{operation} {size}"] = take_turns(turns, given.rounds)
            tell(f"{operation} {size}", found[f"{operation} {size}"], "us")
    finally:
        for group in groups.values():
            group.close()
    return found


class Job:
    """Workers that train elastically; what each wrote about its steps."""

    def __init__(self, way, hosts):
        environment, options = WAYS[way]
        self.directory = Path(tempfile.mkdtemp(prefix="hvd-horovod-bench.", dir="/dev/shm"))
        self.hosts(hosts)
        script = self.directory / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {self.directory}/hosts\n")
        script.chmod(0o755)
        argv = command(
            ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", script, *options],
            "elastic")
        self.log = open(self.directory / "log", "w+")
        self.process = subprocess.Popen([*map(str, argv)],
                                        stdin=subprocess.DEVNULL,
                                        stdout=self.log,
                                        stderr=self.log,
                                        start_new_session=True,
                                        env={
                                            **os.environ, "OMP_NUM_THREADS": "1",
                                            "HVD_BENCH_DIRECTORY": str(self.directory),
                                            **environment
                                        })

    def hosts(self, lines):
        (self.directory / "new").write_text("".join(f"{line}\n" for line in lines))
        os.replace(self.directory / "new", self.directory / "hosts")

    def steps(self):
        """{pid: [(ns, size, rank)]}"""
        return {
            int(path.suffix[1:]):
            [tuple(map(int, line.split())) for line in path.read_text().splitlines() if line.count(" ") == 2]
            for path in self.directory.glob("steps.*")
        }

    def wait(self, condition):
        """What `condition` makes of the steps, once it is something."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = condition(self.steps())
            if found:
                return found
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the job came no further\n{Path(self.log.name).read_text()[-4000:]}")
            time.sleep(0.02)

    def close(self):
        (self.directory / "stop").touch()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def together(size, count):
    """Condition: `size` workers have each made `count` steps of that many ranks."""

    def check(steps):
        those = {pid: [s for s in made if s[1] == size] for pid, made in steps.items()}
        return those if sum(len(made) >= count for made in those.values()) == size else None

    return check


def loss(way):
    """Milliseconds from a kill to the end of the survivor's next step."""
    job = Job(way, ["localhost:1", "127.0.0.1:1"])
    try:
        running = job.wait(together(2, 50))
        victim = next(pid for pid, made in running.items() if made[-1][2] == 1)
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.kill(victim, signal.SIGKILL)
        alone = job.wait(together(1, 1))
        return {
            "a worker is killed: next step":
            (min(made[0][0] for made in alone.values() if made) - began) / 1e6
        }
    finally:
        job.close()


def growth(way):
    """Milliseconds from a host's arrival to the first step of three, and the longest step of the two."""
    job = Job(way, ["localhost:2"])
    try:
        running = job.wait(together(2, 50))
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        job.hosts(["localhost:2", "127.0.0.1:1"])
        three = job.wait(together(3, 20))
        ends = [[s[0] for s in job.steps()[pid] if s[0] >= began] for pid in running]
        return {
            "a host is added: step of three": (min(made[0][0] for made in three.values()) - began) / 1e6,
            "a host is added: longest step": max(b - a for made in ends for a, b in zip(made, made[1:])) / 1e6
        }
    finally:
        job.close()


def elastic():
    found = {}
    for turn in range(given.turns):
        for measure in (loss, growth):
            for way in (("libhvd", "Horovod, Gloo") if turn % 2 == 0 else ("Horovod, Gloo", "libhvd")):
                for what, value in measure(way).items():
                    found.setdefault(what, {}).setdefault(way, []).append(value)
    for what, times in found.items():
        tell(what, times, "ms")
    return found


def tell(what, times, unit):
    texts = []
    for way, values in times.items():
        text = f"{way} {statistics.median(values):.4g} {unit}"
        if way != "libhvd":
            over = [theirs / mine for theirs, mine in zip(values, times["libhvd"])]
            text += f" (x{statistics.median(over):.3g}, {min(over):.3g} to {max(over):.3g})"
        texts.append(text)
    print(f"{what}: {' | '.join(texts)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("torch", "tensorflow"), default="torch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report = {**calls(), **elastic()}
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
