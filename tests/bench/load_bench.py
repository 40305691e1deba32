#!/usr/bin/env python3
"""How late signs of life are, and how long workers take to start, while other programs keep the machine busy.

    load_bench [--load N] [--seconds S] [--starts N] [--import MODULE]

Time-outs that take a living worker for a dead one cost its work, so their defaults must have room on a busy
machine: heartbeat_timeout (10 s), and start_timeout (5 min). N programs that do nothing but run (40; 0 for
comparison) are started here and ended at the end. A job of four Python workers trains for S seconds (60), and
an operator's command asks its driver five times a second how long each worker was silent. Then jobs of four
workers that import MODULE (torch, for one) start one after the other. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

WORKERS = 4
BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))
HVDRUN = os.path.join(BIN, "hvdrun")
BUSY = ["/bin/sh", "-c", "while :; do :; done"]


@contextlib.contextmanager
def load(programs):
    running = [subprocess.Popen(BUSY) for _ in range(programs)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
        for program in running:
            program.wait()


class Job:
    """Four workers that train so long, and what they say of their start."""

    def __init__(self, folder, seconds, module):
        self.address = os.path.join(folder, "address")
        environment = {**os.environ, "HVD_BENCH_SECONDS": str(seconds), "HVD_BENCH_IMPORT": module}
        self.process = subprocess.Popen(
            [HVDRUN, "-np", str(WORKERS), "-H", f"localhost:{WORKERS}", "--address-file", self.address,
             os.path.join(BIN, "load_bench_python")],
            stdout=subprocess.PIPE, text=True, env=environment)

    def silences(self):
        """Of each worker now, in seconds; None once the job has ended."""
        asked = subprocess.run([HVDRUN, "ctl", "--address", self.address, "--json", "status"],
                               capture_output=True, text=True)
        if asked.returncode != 0:
            return None
        workers = json.loads(asked.stdout)["workers"]
        silences = [worker["silent_seconds"] for worker in workers if worker["rank"] >= 0]
        return [silence for silence in silences if silence is not None]

    def finish(self):
        output, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise SystemExit(f"the job ended with {self.process.returncode}:\n{output}")
        lines = [line.partition("{") for line in output.splitlines()]
        return [json.loads(mark + rest) for _, mark, rest in lines if mark]


def watched(folder, seconds):
    job, found = Job(folder, seconds, ""), []
    while job.process.poll() is None:
        if os.path.exists(job.address):
            found += job.silences() or []
        time.sleep(0.2)
    job.finish()
    if not found:
        raise SystemExit("no worker was seen to train: give it more --seconds")
    return sorted(found)


def started(folder, module):
    said = Job(folder, 1, module).finish()
    return [worker["imported"] for worker in said], [worker["first"] for worker in said]


def summary(name, values):
    median, low, high = statistics.median(values), min(values), max(values)
    print(f"{name}: median {median:.2f} s, worst {high:.2f} s (n={len(values)})", flush=True)
    return {"median_us": median * 1e6, "low_us": low * 1e6, "high_us": high * 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--import", dest="module", default="")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: exit(1))  # what was started is ended on the way out
    report = {}
    with load(arguments.load), tempfile.TemporaryDirectory() as folder:
        report["silence"] = summary("silence of a worker that trains", watched(folder, arguments.seconds))
        imported, first = [], []
        for _ in range(arguments.starts):
            one = started(folder, arguments.module)
            imported += one[0]
            first += one[1]
        report["imports"] = summary(f"start to imported ({arguments.module or 'NumPy'})", imported)
        report["start"] = summary("start to its first generation", first)
        report["load"] = os.getloadavg()[0]
        print(f"load {report['load']:.0f}")
    print(json.dumps({"busy machine": report}))


if __name__ == "__main__":
    main()
