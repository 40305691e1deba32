"""Whole elastic jobs of Python workers through hvdrun: a worker is killed, a slot is added."""

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hvd
from conftest import PACKAGE, PATIENCE

try:
    import torch  # noqa: F401
except ImportError:
    torch = None
WORKER = Path(__file__).with_name("elastic_worker.py")
KINDS = [
    "numpy",
    pytest.param("torch", marks=pytest.mark.skipif(torch is None, reason="PyTorch is not installed"))
]
EPOCHS, SAMPLES = 3, 200
TOTAL = float(EPOCHS * sum(range(SAMPLES)))
OPTIONS = {
    "heartbeat_interval": 0.5, "heartbeat_timeout": 10, "restart_delay_min": 0.05, "discovery_interval": 0.05,
    "join_settle": 10, "elastic_timeout": 40 * PATIENCE, "start_timeout": 40 * PATIENCE, "stop_grace": 2
}


class Job:
    """hvdrun with elastic_worker.py, its events in a queue; ended at the end of the test."""

    def __init__(self, directory, slots, arguments, worker=WORKER, options=OPTIONS, **limits):
        self.hosts = directory / "hosts"
        self.set_slots(slots)
        script = directory / "discover"
        script.write_text(f"#!/bin/sh\nexec cat '{self.hosts}'\n")
        script.chmod(0o755)
        command = [hvd.hvdrun(), "-np", str(slots), "--local-hosts", "--host-discovery-script", str(script)]
        for flag, value in limits.items():
            command += [f"--{flag.replace('_', '-')}", str(value)]
        for key, value in options.items():
            command += ["--set", f"{key}={value}"]
        command += ["--", sys.executable, str(worker), *map(str, arguments)]
        if shutil.which("setpriv"):  # hvdrun goes with us even if we are killed
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        environment = {
            **os.environ, "PYTHONPATH": str(PACKAGE), "HVD_INIT_TIMEOUT": str(60 * PATIENCE), "OMP_NUM_THREADS": "1",
            "HVD_OPERATION_TIMEOUT": str(60 * PATIENCE)
        }
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.events, self.seen = [], queue.Queue(), []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def set_slots(self, slots):
        new = self.hosts.with_suffix(".new")
        new.write_text(f"localhost:{slots}\n")
        new.rename(self.hosts)

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if "{" in line:
                try:
                    self.events.put(json.loads(line[line.index("{"):]))
                except ValueError:
                    pass
        self.events.put(None)

    def wait(self, kind, **wanted):
        deadline = time.monotonic() + 60 * PATIENCE
        while True:
            try:
                event = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                event = None
            assert event is not None, f"no {kind} {wanted}; the job said:\n{''.join(self.lines[-60:])}"
            self.seen.append(event)
            if event["event"] == kind and all(event[key] == value for key, value in wanted.items()):
                return event

    def end(self):
        status = self.process.wait(60 * PATIENCE)
        self.reader.join(10)
        while not self.events.empty():
            event = self.events.get()
            self.seen += [event] if event else []
        assert status == 0, "".join(self.lines[-60:])
        return [event for event in self.seen if event["event"] == "end"]

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(*arguments, **options):
        jobs.append(Job(tmp_path, *arguments, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_without_losses(start, kind):
    ends = start(2, [kind, EPOCHS, SAMPLES, "plain"]).end()
    assert [end["total"] for end in ends] == [TOTAL] * 2 and all(end["agree"] for end in ends)
    assert ends[0]["log"] == [2, 2, 2] and ends[0]["recoveries"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_kill_9(start, kind):
    """Each sample counts once an epoch though a worker is killed in the middle and another one takes its
    place."""
    job = start(3, [kind, EPOCHS, SAMPLES, "kill"], min_np=2, max_np=3)
    victim = job.wait("ready")["pid"]
    os.kill(victim, signal.SIGKILL)
    job.wait("reset")
    ends = job.end()
    assert len(ends) >= 2 and all(end["total"] == TOTAL and end["agree"] for end in ends), ends
    survivors = [end for end in ends if end["recoveries"]]
    assert len(survivors) >= 2 and "rank 1" in survivors[0]["recoveries"][0]
    again = [event for event in job.seen if event["event"] == "train" and event["processed"] > 0]
    assert len(again) >= 2 and all(event["epoch"] == 1 for event in again), job.seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_is_added(start, kind):
    job = start(2, [kind, EPOCHS, SAMPLES, "grow", 3], min_np=2, max_np=3)
    job.wait("train")
    job.set_slots(3)
    job.wait("train", size=3)
    ends = job.end()
    assert [end["total"] for end in ends] == [TOTAL] * 3 and all(end["agree"] for end in ends)
    assert ends[0]["log"][1:] == [3, 3]
    told = [(event["event"], event["size"]) for event in job.seen
            if event["event"] in ("on_reset", "reset of the state")]
    assert told.count(("on_reset", 3)) == told.count(("reset of the state", 3)) == 2, told
    assert any(event["event"] == "on_hosts_updated" and event["recent"] for event in job.seen)


PREPARES = """
import json, sys, time
from pathlib import Path
import hvd, hvd.elastic

prepares, trained, patience = Path(sys.argv[1], "prepares"), Path(sys.argv[1], "trained"), float(sys.argv[2])
hvd.init(connect=False)
state = hvd.elastic.ObjectState(step=0, since=0)
if Path(sys.argv[1], "grown").exists():  # this one is the newcomer
    prepares.touch()
    deadline = time.monotonic() + 40 * patience
    while not trained.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@hvd.elastic.run
def train(state):
    print(json.dumps({"event": "train", "size": hvd.size(), "step": state.step}), flush=True)
    while hvd.size() < 3:
        hvd.barrier()
        state.step += 1
        if prepares.exists() and hvd.rank() == 0:
            state.since += 1
            if state.since == 20:
                trained.touch()
        state.commit()
    return state.step


step = train(state)
print(json.dumps({"event": "end", "step": step, "trained": trained.exists()}), flush=True)
hvd.shutdown()
"""


def test_members_train_while_a_newcomer_prepares(start, tmp_path):
    """It joins in elastic.run, with a context that hvd.init(connect=False) made and a state that it has
    registered."""
    script = tmp_path / "prepares.py"
    script.write_text(PREPARES)
    job = start(2, [tmp_path, PATIENCE], worker=script, min_np=2, max_np=3)
    job.wait("train")
    (tmp_path / "grown").touch()
    job.set_slots(3)
    ends = job.end()
    assert len(ends) == 3 and all(end["trained"] and end["step"] >= 20 for end in ends), ends
    assert len({end["step"] for end in ends}) == 1, ends


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_a_horovod_script(start):
    """It differs from one for Horovod in its import alone, loses a worker, and learns all the same."""
    job = start(2, [], worker=WORKER.with_name("horovod_script.py"), min_np=2, max_np=2)
    os.kill(job.wait("ready")["pid"], signal.SIGKILL)
    ends = job.end()
    assert len(ends) == 2 and sorted(end["recoveries"] for end in ends) == [0, 1], ends
    for end in ends:
        assert end["agree"] and end["epoch"] == 3 and end["rate"] == 0.1 and end["accuracy"] > 0.9, ends


def test_a_worker_that_comes_after_the_end(start, tmp_path):
    """The job has succeeded without it: one sentence, no traceback, status 0."""
    job = start(2, [tmp_path], worker=WORKER.with_name("late_worker.py"), min_np=1, max_np=2,
                options={**OPTIONS, "stop_grace": 40})
    late = job.wait("late")
    job.end()
    assert late["status"] == 0 and late["output"] == "", late
    sentence = "the job has ended with success before this worker joined it: .+\n"
    assert re.fullmatch(sentence, late["errors"]), late


def test_an_exception_fails_the_job(start, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import hvd\nhvd.init()\nhvd.barrier()\nraise KeyError('mine')\n")
    done = subprocess.run([hvd.hvdrun(), "-np", "2", "-H", "localhost:2", "--set", "restart=false",
                           "--set", "elastic_timeout=10", "--set", "join_settle=1", "--", sys.executable,
                           str(broken)], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True,
                          text=True, timeout=60 * PATIENCE)
    assert done.returncode != 0 and "KeyError: 'mine'" in done.stdout + done.stderr


# What the manual's blocks leave out, in their order.
AROUND = [
    ("", ""),
    ("import asyncio\nimport numpy as np\nimport hvd\nhvd.init()\nx, y = np.ones(2), np.ones(2)\n",
     "asyncio.run(step())\n"),
    ("import numpy as np\nimport hvd\nhvd.init()\nw, data = np.zeros(3), list(range(256))\n", ""),
    ("", ""),
]


def test_the_manuals_examples(tmp_path):
    pytest.importorskip("numpy")
    manual = (PACKAGE.parents[1] / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", manual, re.S)
    assert len(blocks) == len(AROUND)
    programs = [before + block + after + "print('ran', flush=True)\n"
                for block, (before, after) in zip(blocks, AROUND)]
    for index, program in enumerate(programs):
        (tmp_path / "example.py").write_text(program)
        if index == 2:
            (tmp_path / "train.py").write_text(program)  # for the driver's
        # The last one is no worker.
        job = [] if program is programs[-1] else [hvd.hvdrun(), "-np", "2", "-H", "localhost:2", "--set",
                                                  "restart=false", "--"]
        done = subprocess.run(
            [*job, sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True,
            timeout=120 * PATIENCE, env={
                **os.environ, "PYTHONPATH": str(PACKAGE),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HVD_LOCAL_HOSTS": "true", "OMP_NUM_THREADS": "1"
            })
        ran = len(re.findall(r"\bran$", done.stdout, re.M))
        assert done.returncode == 0 and (ran == 2 if job else ran >= 3), program + done.stdout + done.stderr
