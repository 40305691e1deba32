#!/usr/bin/env python3
"""Workers of several languages train one model together; one is killed, another one joins.

    mixed_job.py --hvdrun bin/hvdrun --program C++=bin/fashion_mnist --program Rust=... --program Go=... [-- options]

Slot i of the host runs the i-th program. The job begins with one worker of each, the one of the last program is killed
with SIGKILL once training runs, and a slot more, for the first program, comes up when it has been replaced. Succeeds if the
job does: every worker compares its model with the others', bit for bit. Arguments after -- go to the programs.
"""

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

SILENCE_S = 120
SKIPPED = 77


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
        command = [arguments.hvdrun, "-np", str(count), "--min-np", str(count - 1), "--max-np", str(count + 1),
                   "--host-discovery-script", discover, "--set", "discovery_interval=0.1",
                   "--set", "restart_delay_min=0.1", "--", start, *arguments.options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.text = b""
        self.lines = []

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
        victim = None
        for _ in range(count):
            joined = self.wait(r"worker (\d+) pid (\d+) joins as rank \d+ of \d+(?: \((.*)\))?")
            if (joined[3] or "C++") == victim_language:
                victim = int(joined[2])
        if victim is None:
            raise SystemExit("no worker of language %s joined" % victim_language)
        self.wait(r"step \d+ .* workers %d$" % count)
        print("--- SIGKILL to the worker in %s, pid %d" % (victim_language, victim), flush=True)
        os.kill(victim, signal.SIGKILL)
        self.wait(r"recovery 1: .* %d workers go on" % (count - 1))
        self.wait(r"step \d+ .* workers %d$" % count)
        print("--- it has been replaced; now a slot more, for %s" % self.programs[0][0], flush=True)
        self.set_slots(count + 1)
        self.wait(r"step \d+ .* workers %d$" % (count + 1))
        self.wait(r"all %d workers hold the same model" % (count + 1))
        self.wait(r"test accuracy")
        while self.line() is not None:
            pass
        return self.process.wait(30)

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
                                                       stderr=subprocess.DEVNULL, timeout=60).returncode != SKIPPED


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    print("languages: %s; hvdrun ended with status %d" % (", ".join(name for name, _ in job.programs), status))
    return status


if __name__ == "__main__":
    sys.exit(main())
