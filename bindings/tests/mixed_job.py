#!/usr/bin/env python3
"""Workers of several languages train one model together; one is killed, another one joins.

    mixed_job.py --hvdrun bin/hvdrun --program C++=bin/fashion_mnist --program Rust=... --program Go=... [-- options]

Slot i of the host runs the i-th program. The job begins with one worker of each, the one of the last program
is killed with SIGKILL once training runs, and a slot more, for the first program, comes up when it has been
replaced. Succeeds if the job does: every worker compares its model with the others', bit for bit. Arguments
after -- go to the programs.

HVD_TEST_CHURN=N: N changes more before that one, of a random kind to a random worker (HVD_TEST_SEED):
SIGKILL, a slot more, a slot less. Give the programs epochs enough. Fails also if who lived through them
gained threads or descriptors by it.
"""

import argparse
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

SILENCE_S = 120 * PATIENCE
SKIPPED = 77
CHURN = int(os.environ.get("HVD_TEST_CHURN", "0"))


JOINED = re.compile(r"worker \d+ pid (\d+) joins as rank \d+ of \d+(?: \((.*)\))?")


def resources(pid):
    """Resident MiB, threads and open descriptors; None once it is gone."""
    try:
        with open("/proc/%d/status" % pid) as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["VmRSS"].split()[0]) >> 10, int(fields["Threads"]), len(
            os.listdir("/proc/%d/fd" % pid))
    except (OSError, KeyError):
        return None


class Job:
    def __init__(self, arguments, directory):
        self.programs = [program.split("=", 1) for program in arguments.program]
        self.directory = directory
        self.set_slots(len(self.programs))
        # The worker's slot says which program it is.
        cases = "".join("%d) exec '%s' \"$@\";;\n" % (slot, path) for slot, (_, path) in enumerate(
            self.programs + self.programs[:1]))
        start = self.script("start", 'case "$HVD_SLOT" in\n%sesac\n' % cases)
        discover = self.script("discover", "exec cat '%s/hosts'\n" % directory)
        count = len(self.programs)
        command = [
            arguments.hvdrun, "-np",
            str(count), "--min-np",
            str(count - 1), "--max-np",
            str(count + 1), "--local-hosts", "--host-discovery-script", discover, "--set",
            "discovery_interval=0.1", "--set", "restart_delay_min=0.1",
            *(["--set", "blocklist_after=%d" % (2 * CHURN)] if CHURN else []), "--", start, *arguments.options
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.text = b""
        self.lines = []
        self.workers = {}  # pid: language, of all that have joined

    def script(self, name, commands):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + commands)
        os.chmod(path, 0o755)
        return path

    def set_slots(self, count):
        path = os.path.join(self.directory, "hosts")
        with open(path + ".new", "w") as file:
            file.write("localhost:%d\n" % count)
        os.rename(path + ".new", path)

    def line(self):
        """The next line; None at the end of the job."""
        deadline = time.monotonic() + SILENCE_S
        while b"\n" not in self.text:
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise SystemExit("no output for %d s" % SILENCE_S)
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self.text += more
        line, self.text = self.text.split(b"\n", 1)
        self.lines.append(line.decode("utf-8", "replace"))
        print(self.lines[-1], flush=True)
        joined = JOINED.search(self.lines[-1])
        if joined:
            self.workers[int(joined[1])] = joined[2] or "C++"
        return self.lines[-1]

    def wait(self, pattern):
        while True:
            line = self.line()
            if line is None:
                raise SystemExit("the job ended before a line came that fits %r" % pattern)
            found = re.search(pattern, line)
            if found:
                return found

    def run(self):
        count = len(self.programs)
        victim_language = self.programs[-1][0]
        for _ in range(count):
            self.wait(JOINED)
        self.wait(r"step \d+ .* workers %d$" % count)
        self.churn(CHURN)
        victims = [pid for pid, language in self.alive().items() if language == victim_language]
        if not victims:
            raise SystemExit("no worker of language %s joined" % victim_language)
        victim = victims[-1]
        print("--- SIGKILL to the worker in %s, pid %d" % (victim_language, victim), flush=True)
        os.kill(victim, signal.SIGKILL)
        self.wait(r"recovery \d+: .* %d workers go on" % (count - 1))
        self.wait(r"step \d+ .* workers %d$" % count)
        print("--- it has been replaced; now a slot more, for %s" % self.programs[0][0], flush=True)
        self.set_slots(count + 1)
        self.wait(r"step \d+ .* workers %d$" % (count + 1))
        self.wait(r"all %d workers hold the same model" % (count + 1))
        self.wait(r"test accuracy")
        while self.line() is not None:
            pass
        return self.process.wait(30)

    def alive(self):
        return {pid: language for pid, language in self.workers.items() if resources(pid) is not None}

    def churn(self, changes):
        count = size = len(self.programs)
        chance = random.Random(os.environ.get("HVD_TEST_SEED", "1"))
        seen = {}  # pid: what it had after each change of the job back to its first size
        for change in range(1, changes + 1):
            kind = chance.choice(("kill", "kill", "resize"))
            if kind == "kill":
                pid, language = chance.choice(sorted(self.alive().items()))
                print("--- change %d: SIGKILL to pid %d, %s" % (change, pid, language), flush=True)
                os.kill(pid, signal.SIGKILL)
                self.wait(JOINED)
            else:
                before, size = self.alive(), count if size > count else count + 1
                print("--- change %d: %d slots" % (change, size), flush=True)
                self.set_slots(size)
                if size > count:
                    self.wait(JOINED)
            self.wait(r"step \d+ .* workers %d$" % size)
            deadline = time.monotonic() + SILENCE_S
            while kind == "resize" and size == count and self.alive() == before:
                if time.monotonic() > deadline:
                    raise SystemExit("the worker without a slot did not end")
                time.sleep(0.01)
            if size == count:
                for pid in self.alive():
                    seen.setdefault(pid, []).append(resources(pid))
        if size != count:
            self.set_slots(count)
            self.wait(r"step \d+ .* workers %d$" % count)
        for pid, history in seen.items():
            print(
                "--- pid %d, %s: resident MiB, threads, descriptors: %s" %
                (pid, self.workers[pid], " ".join("%d/%d/%d" % values for values in history if values)),
                flush=True)
            history = [values for values in history if values]
            if len(history) > 4 and any(last - first > len(history) // 2 for first, last in zip(
                    history[0][1:], history[-1][1:])):
                raise SystemExit("a worker in %s has gained threads or descriptors" % self.workers[pid])
        if changes:
            print("--- hvdrun: resident MiB, threads, descriptors: %d/%d/%d" % resources(self.process.pid),
                  flush=True)

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()  # hvdrun ends its workers
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.stdout.close()


def can_run(path):
    return os.access(path, os.X_OK) and subprocess.run([path, "--help"], stdout=subprocess.DEVNULL,
                                                       stderr=subprocess.DEVNULL,
                                                       timeout=60 * PATIENCE).returncode != SKIPPED


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hvdrun", default="hvdrun")
    parser.add_argument("--program", action="append", default=[], metavar="LANGUAGE=PATH")
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    missing = [program for program in arguments.program if not can_run(program.split("=", 1)[1])]
    arguments.program = [program for program in arguments.program if program not in missing]
    if missing:
        print("left out, as not built, or without what it needs: %s" % ", ".join(missing))
    if len(arguments.program) < 2:
        print("skipped: at least two programs are needed")
        return SKIPPED
    data = os.environ.get("HVD_FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist")
    if not os.path.isdir(data):
        print("skipped: no data set in %s (Debian package dataset-fashion-mnist)" % data)
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="hvd-mixed-") as directory:
        job = Job(arguments, directory)
        try:
            status = job.run()
        finally:
            job.close()
    print("languages: %s; hvdrun ended with status %d" % (", ".join(name
                                                                    for name, _ in job.programs), status))
    return status


if __name__ == "__main__":
    sys.exit(main())
