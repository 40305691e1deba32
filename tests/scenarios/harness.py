"""Starts a job through hvdrun, reads what its workers and its log say, and checks what training saw.

Nothing here sleeps or hopes: every wait is for an event, with a deadline, and a job that is paced stands at a
gate (a FIFO) until the test opens it. A test ends only what it started, and fails if anything is left over.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from processes import PATIENCE, wait_for_exit
from verification import Verification

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from network import Network  # noqa: E402

BIN = os.environ.get("HVD_TEST_BIN") or os.path.join(os.getcwd(), "bin")
HVDRUN = os.path.realpath(os.path.join(BIN, "hvdrun"))
BACKEND = os.environ.get("HVD_TEST_BACKEND", "")  # "": what auto gives
# Hosts have networks of their own (network.py), and agents that hvdrun starts there.
AGENTS = bool(os.environ.get("HVD_TEST_AGENTS"))

# Short times, so that a scenario takes a second; long where a busy machine must not look like a fault.
DRIVER_OPTIONS = {
    "heartbeat_interval": 0.2, "heartbeat_timeout": 5, "restart_delay_min": 0.05, "restart_delay_max": 1,
    "discovery_interval": 0.05, "discovery_timeout": 5, "join_settle": 5, "elastic_timeout": 20,
    "start_timeout": 20, "stop_grace": 2, "blocklist_after": 100, "local_hosts": 1,
}
for _name in ("heartbeat_timeout", "discovery_timeout", "join_settle", "elastic_timeout", "start_timeout"):
    DRIVER_OPTIONS[_name] *= PATIENCE
WORKER_ENVIRONMENT = {
    "HVD_INIT_TIMEOUT": "30", "HVD_CONNECT_TIMEOUT": "10", "HVD_OPERATION_TIMEOUT": "30",
    "HVD_SHUTDOWN_TIMEOUT": "15",
}
WORKER_ENVIRONMENT = {name: "%g" % (float(value) * PATIENCE) for name, value in WORKER_ENVIRONMENT.items()}


def matches(event, wanted):
    for key, value in wanted.items():
        if key not in event:
            return False
        if callable(value):
            if not value(event[key]):
                return False
        elif event[key] != value:
            return False
    return True


def containing(pattern):
    """For wait(): the field's text matches the regular expression somewhere."""
    return lambda text: re.search(pattern, str(text), re.IGNORECASE) is not None


class Job(Verification):
    """A job under hvdrun. `hosts` is "a:2,b:1", None to name none; `worker` holds the worker's key=value
    arguments."""

    def __init__(self, test, hosts, worker, np=None, min_np=None, max_np=None, faults="", options=None,
                 flags=(), environment=None, gates=(), script=True, discover=None,
                 sink=False, prepare=None, wrapper=()):
        self.test = test
        self.directory = tempfile.mkdtemp(prefix="hvd-scenario-")
        self.events = []
        self.changed = threading.Condition()
        self.drained = False  # all that hvdrun has printed was read
        self.ended = False    # and nothing comes from elsewhere
        self.sunk = False     # what workers had written into the sink when hvdrun had ended was read
        self.gates = {}
        self.kinds = set()  # of events to remember; empty: all
        self.shown = 150  # lines of the job that a failure tells
        self.version = 0
        self.process = None
        self.threads = []
        self.ran = None
        test.addCleanup(self.close)
        for argument in worker:
            if argument.startswith("gate="):
                self.make_gate("step." + argument[5:])
        for gate in gates:
            self.make_gate(gate)
        self.environment = dict(os.environ)
        for name in [
                name for name in self.environment if name.startswith("HVD_") and name != "HVD_PLUGIN_PATH"
        ]:
            del self.environment[name]
        self.environment.update(WORKER_ENVIRONMENT)
        if BACKEND:
            # Ranks of one host would share memory and never ask it.
            self.environment.update({"HVD_BACKEND": BACKEND, "HVD_LOCAL": "off"})
        self.environment.update(environment or {})
        self.environment["HVD_TEST_DIR"] = self.environment["TMPDIR"] = self.directory
        if faults:
            self.environment["HVD_TEST_FAULTS"] = faults
        self.sink = None
        if sink:  # events come by a FIFO, also when hvdrun, through which the workers print, is gone
            path = os.path.join(self.directory, "sink")
            os.mkfifo(path)
            self.sink = os.open(path, os.O_RDWR)
            self.environment["HVD_TEST_SINK"] = path
            self._read_in_thread(self._read_sink)
        self.worker = list(wrapper) + [os.path.join(BIN, "scenario_worker")] + list(worker)
        # prepare(job): another program that takes hvdrun's options and speaks as it does, to be started as it
        # says.
        options = {**DRIVER_OPTIONS, **(options or {})}
        self.address_behind_agents = ""
        if AGENTS and prepare is None:
            self.address_behind_agents = test.network.address("driver") + ":"
            prepare = self._behind_agents
            options["local_hosts"] = 0
        command = (prepare(self) if prepare else [os.path.join(BIN, "hvdrun")]) + ["--verbose"]
        for flag, value in (("-np", np), ("--min-np", min_np), ("--max-np", max_np)):
            if value is not None:
                command += [flag, str(value)]
        if script:
            self._prepare_discovery(hosts, discover)
            command += ["--host-discovery-script", os.path.join(self.directory, "discover.sh")]
        elif hosts is not None:
            command += ["-H", hosts]
        options["join_settle"] = min(options["join_settle"], options["elastic_timeout"] / 2)
        for key, value in options.items():
            command += ["--set", "%s=%s" % (key, value)]
        command += list(flags) + self.worker
        self._start(command)

    # ---- starting and reading ----

    @staticmethod
    def _behind_agents(job):
        network = job.test.network
        return [
            *network.enter("driver"), "env", "--chdir=" + job.directory,
            os.path.join(BIN, "hvdrun"), "--agent",
            network.starter() + " {host}"
        ]

    def _start(self, command):
        if shutil.which("setpriv"):  # hvdrun goes with us even if we are killed
            command = ["setpriv", "--pdeathsig", "TERM"] + command
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=self.environment,
                                        start_new_session=True)
        self._read_in_thread(self._read_output)

    def _read_in_thread(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def keep(self, *kinds):
        """For jobs that would fill the memory: remembers events of these kinds alone from here on."""
        self.kinds = set(kinds)

    def _add(self, event):
        with self.changed:
            if self.kinds and event["ev"] not in self.kinds:
                return
            event["n"] = len(self.events)
            self.events.append(event)
            self.changed.notify_all()

    def _read_output(self):
        for raw in self.process.stdout:
            self._add(self._parse(raw.decode("utf-8", "replace").rstrip("\n")))
        with self.changed:
            self.drained = True
            self.ended = self.sink is None
            self.changed.notify_all()

    def _read_sink(self):
        with os.fdopen(os.dup(self.sink), "r") as lines:
            for line in lines:
                if line == "end\n":
                    return
                if line == "so far\n":
                    with self.changed:
                        self.sunk = True
                        self.changed.notify_all()
                    continue
                self._add(self._parse("[sink] " + line.rstrip("\n")))

    @staticmethod
    def _parse(line):
        if line.startswith("hvdrun: "):
            return {"ev": "hvdrun", "text": line[len("hvdrun: "):], "line": line}
        match = re.match(r"\[([^\]]*)\][^{]*(\{.*\})$", line)
        if match:
            try:
                event = json.loads(match.group(2))
                event["prefix"] = match.group(1)
                event["line"] = line
                return event
            except ValueError:
                pass
        return {"ev": "raw", "text": line, "line": line}

    # ---- discovery ----

    def _prepare_discovery(self, hosts, discover):
        """The script tells us each time it runs, and for which version of the hosts, through a FIFO."""
        os.mkfifo(os.path.join(self.directory, "ran"))
        self.ran = os.open(os.path.join(self.directory, "ran"), os.O_RDWR)
        if discover is None:
            self._write_discovery(self._lines(hosts))
        else:
            self._write_discovery(discover)
        path = os.path.join(self.directory, "discover.sh")
        with open(path, "w") as script:
            script.write("#!/bin/sh\n. '%s/discover'\n" % self.directory)
        os.chmod(path, 0o755)
        self._read_in_thread(self._read_runs)

    @staticmethod
    def _lines(hosts):
        return "".join("echo %s\n" % host for host in hosts.split(",") if host) or ":\n"

    def _write_discovery(self, commands):
        self.version += 1
        path = os.path.join(self.directory, "discover")
        with open(path + ".new", "w") as file:
            file.write("echo %d > '%s/ran'\n%s" % (self.version, self.directory, commands))
        os.rename(path + ".new", path)

    def _read_runs(self):
        with os.fdopen(os.dup(self.ran), "r") as runs:
            for line in runs:
                if line.strip() == "end":
                    return
                self._add({"ev": "discovery", "version": int(line), "line": "discovery %s" % line.strip()})

    def set_hosts(self, hosts, runs=3):
        """Changes what discovery prints; returns when the driver has taken it in."""
        self.set_discovery(self._lines(hosts), runs)

    def set_discovery(self, commands, runs=3):
        """Changes the commands of the discovery script; returns when it has begun `runs` times with them (one
        more than the runs whose results the driver has certainly seen)."""
        self._write_discovery(commands)
        for _ in range(runs):
            mark = self.mark()
            self.wait("discovery", version=self.version, since=mark)

    # ---- waiting ----

    def mark(self):
        with self.changed:
            return len(self.events)

    def find(self, kind, since=0, **wanted):
        with self.changed:
            return [e for e in self.events[since:] if e["ev"] == kind and matches(e, wanted)]

    def wait(self, kind, since=0, count=1, timeout=60, **wanted):
        """The `count`-th event of this kind whose fields match, as soon as there is one."""
        deadline = time.monotonic() + timeout * PATIENCE
        with self.changed:
            while True:
                found = [e for e in self.events[since:] if e["ev"] == kind and matches(e, wanted)]
                if len(found) >= count:
                    if kind == "gate":
                        self.changed.wait_for(lambda: self._all_train(found[count - 1]), 2)
                    return found[count - 1]
                left = deadline - time.monotonic()
                if self.ended or left <= 0:
                    why = "the job has ended" if self.ended else "deadline of %g s" % (timeout * PATIENCE)
                    break
                self.changed.wait(left)
        self.fail("%s while waiting for %d x %s %s" % (
            why, count, kind, {k: v if not callable(v) else "(condition)" for k, v in wanted.items()}))

    def _all_train(self, gate):
        """Whether what the gate's members printed as they began was read: each has a pipe of its own."""
        begun = {e["worker"] for e in self.events if e["ev"] == "train" and e["gen"] == gate["gen"]}
        return len(begun) >= gate["size"] or bool(self.kinds)

    def fail(self, message):
        with self.changed:
            lines = [e["line"] for e in self.events if e["ev"] != "discovery"]
        self.test.fail("%s\n--- what the job said ---\n%s" % (message, "\n".join(lines[-self.shown:])))

    def check(self, condition, message):
        if not condition:
            self.fail(message)

    def wait_interrupt(self, members, since=0, timeout=20, **wanted):
        """Waits until this many members have heard that they are to leave at their next commit or check
        (worker argument log=3)."""
        return self.wait("log", since=since, count=members, timeout=timeout, **wanted,
                         msg=lambda text: "hosts updated" in text and "no change" not in text)

    # ---- acting ----

    def driver(self):
        """Number of the process that is the driver: hvdrun's own child, if it has a journal."""
        program = os.path.realpath("/proc/%d/exe" % self.process.pid)
        with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as file:
                    is_agent = b"--join" in file.read().split(
                        b"\0")  # which a driver before this one has started
                if os.readlink("/proc/%d/exe" % pid) == program and not is_agent:
                    return pid
            except OSError:
                pass
        return self.process.pid  # without a journal hvdrun is the driver itself

    def kill_driver(self):
        """The driver is killed; returns its number and the mark after which events are what came of it."""
        pid, mark = self.driver(), self.mark()
        os.kill(pid, signal.SIGKILL)
        return pid, mark

    def make_gate(self, name):
        path = os.path.join(self.directory, "gate." + name)
        os.mkfifo(path)
        self.gates[name] = os.open(path, os.O_RDWR)

    def open(self, name):
        """Lets through everyone who waits at the gate and all who come later."""
        os.unlink(os.path.join(self.directory, "gate." + str(name)))
        os.close(self.gates.pop(str(name)))

    def send_signal(self, event, number):
        """Signals the worker that printed `event`."""
        os.kill(event["pid"], number)

    def kill_if_alive(self, event, number=signal.SIGKILL):
        """Signals the worker that printed `event` unless it has ended: it is still ours if its environment
        says so."""
        if event["pid"] not in self.leftovers():
            return False
        os.kill(event["pid"], number)
        return True

    def run_worker(self, arguments, environment):
        """A worker by hand, outside hvdrun: (exit status, events)."""
        done = subprocess.run([os.path.join(BIN, "scenario_worker")] + arguments,
                              env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=40 * PATIENCE)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        return done.returncode, [self._parse("[hand] " + line) for line in lines]

    # ---- the end ----

    def finish(self, status=0, sentence=None, timeout=120):
        """Opens all gates, ends what trains until then, waits for hvdrun to end, checks its status and its
        last line. Status 1: any failure, 75 or 76."""
        for name in list(self.gates):
            self.open(name)
        for argument in self.worker:
            if argument.startswith("until="):
                open(os.path.join(self.directory, argument[6:]), "w").close()
        try:
            code = self.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            self.fail("hvdrun does not end")
        if self.sink is not None:
            os.write(self.sink, b"so far\n")
        with self.changed:
            self.changed.wait_for(lambda: self.drained and (self.sunk or self.sink is None), 10 * PATIENCE)
        lines = [
            e["line"] for e in self.events if e["ev"] != "discovery" and not e["line"].startswith("[sink]")
        ]
        last = lines[-1] if lines else ""
        self.check(code in ((75, 76) if status == 1 else (status, )),
                   "hvdrun ended with status %s, expected %s" % (code, status))
        wanted = r"^hvdrun: job succeeded" if status == 0 else r"^hvdrun: job failed: .+"
        self.check(re.search(wanted, last), "last line is %r, expected %s" % (last, wanted))
        if sentence:
            self.check(re.search(sentence, last, re.IGNORECASE),
                       "last line is %r, expected %s" % (last, sentence))
        return last

    def leftovers(self):
        marker = ("HVD_TEST_DIR=%s\0" % self.directory).encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open("/proc/%s/environ" % entry, "rb") as file:
                    if marker in file.read() + b"\0":
                        found.append(int(entry))
            except OSError:
                pass
        return found

    def close(self):
        for name in list(self.gates):
            self.open(name)
        still_running = self.process is not None and self.process.poll() is None
        if still_running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        deadline = time.monotonic() + 5 * PATIENCE
        left = []
        for pid in self.leftovers():
            if not wait_for_exit(pid, max(0, deadline - time.monotonic())):
                left.append("%d %s" % (pid, self._command_of(pid)))
                os.kill(pid, signal.SIGKILL)
        fifos = [fifo for fifo in (self.sink, self.ran) if fifo is not None]
        for fifo in fifos:
            os.write(fifo, b"end\n")
        for thread in self.threads:
            thread.join(5 * PATIENCE)
        if self.process is not None:
            self.process.stdout.close()
        for fifo in fifos:
            os.close(fifo)
        forgotten = self._job_directories()
        while forgotten and time.monotonic(
        ) < deadline:  # hvd-guard removes those of a driver that was killed
            select.select([], [], [], 0.01)
            forgotten = self._job_directories()
        shutil.rmtree(self.directory, ignore_errors=True)
        if forgotten and not still_running:
            self.fail("directories were left behind: %s" % forgotten)
        if left:
            self.fail("processes were left behind: %s" % left)

    def _job_directories(self):
        return [name for name in os.listdir(self.directory) if name.startswith("hvd-job.")]

    @staticmethod
    def _command_of(pid):
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                return file.read().replace(b"\0", b" ").decode()
        except OSError:
            return "?"


class ScenarioTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        places = [os.path.join(BIN, "..", "lib", "hvd", "0")] + os.environ.get("HVD_PLUGIN_PATH",
                                                                               "").split(":")
        # A module of that name, or one that serves elastic jobs under it.
        files = ["libhvd_%s.so" % BACKEND, "libhvd_%s_elastic.so" % BACKEND]
        if BACKEND and not any(
                os.path.exists(os.path.join(place, file)) for place in places for file in files):
            raise unittest.SkipTest("libhvd_%s.so is not built" % BACKEND)
        if AGENTS:  # one for all tests of the class: making it takes longer than most of them
            directory = tempfile.mkdtemp(prefix="hvd-network-")
            cls.addClassCleanup(shutil.rmtree, directory, ignore_errors=True)
            cls.network = Network(cls.addClassCleanup, directory, ("driver", "a", "b", "c", "d"), (4,))


def main():
    unittest.main(verbosity=2)
