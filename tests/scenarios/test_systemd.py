"""The units in examples/deploy/systemd under a systemd of the test's own: PID 1 of namespaces on a machine's
read-only files.

Nothing of this machine can be changed by it: / is read-only there, and what systemd writes to (/run, /tmp,
/var/log) is in memory.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import BIN, PATIENCE, WORKER_ENVIRONMENT, Job, ScenarioTest, containing, main
from test_arrivals import Lines

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from network import Network  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
UNITS = os.path.join(ROOT, "examples", "deploy", "systemd")
SYSTEMD = next(
    (path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.path.exists(path)), None)
SECRET = "s" * 40

# EC2's metadata service: there is a notice once there is a file of that name.
METADATA = r"""
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_PUT(self):
        self.answer("token" if self.path == "/latest/api/token" else "")
    def do_GET(self):
        known = self.path == "/latest/meta-data/spot/instance-action" and self.headers["X-aws-ec2-metadata-token"] == "token"
        self.answer('{"action": "terminate", "time": "2001-01-01T00:00:00Z"}' if known and os.path.exists(sys.argv[1]) else "")
    def log_message(self, *arguments):
        print("asked", flush=True)
http.server.ThreadingHTTPServer(("169.254.169.254", 80), Handler).serve_forever()
"""

# Runs as PID 1 before systemd does. $1: what the test shares; it is /run/test there. $2: the directory of the
# job, at its own place.
BEGIN = r"""
set -e
mount --make-rprivate /
mkdir "$1/run"
exec 3< "$1" 4< "$2" 5< "$3"
mount --bind "$1/run" /run
mkdir -p /run/test /run/hvd /run/systemd
mount --bind /proc/self/fd/3 /run/test
mount --bind /proc/self/fd/5 /run/hvd
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t proc proc /proc
mount --bind -o ro /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
for directory in /tmp /var/tmp /var/log /var/lib; do mount -t tmpfs -o mode=1777 tmpfs $directory; done
mkdir -p "$2"
mount --bind /proc/self/fd/4 "$2"
mount -t overlay -o lowerdir=/run/test/programs:/usr/bin overlay /usr/bin
mount -o remount,bind,ro /
mount --make-rshared /
cp -r /run/test/units /run/systemd/system
exec 3<&- 4<&- 5<&-
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin "$4" --system --unit=test.target --log-target=null --show-status=no
"""


def control_groups():
    """Where the second version is mounted; None: nowhere."""
    with open("/proc/self/mounts") as file:
        return next((words[1] for words in map(str.split, file) if words[2] == "cgroup2"), None)


class Machine:
    """One systemd, on a host of the network."""

    def __init__(self, test, network, host, shared, units, programs=()):
        """shared: a directory that is at its own place there. programs: (name in /usr/bin, file)."""
        self.directory = tempfile.mkdtemp(prefix="hvd-systemd-")
        os.chmod(self.directory, 0o755)
        test.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        for path, text in units.items():
            path = os.path.join(self.directory, "units", path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        os.mkdir(os.path.join(self.directory, "programs"))
        self.write("programs/hvdrun", "#!/bin/sh\nexec /run/hvd/bin/hvdrun \"$@\"\n", 0o755)
        for name, file in programs:
            shutil.copy(file, os.path.join(self.directory, "programs", name))
        self.write("begin", BEGIN)
        self.write("secret", SECRET + "\n", 0o600)
        self.group = os.path.join(control_groups() or "/nonexistent", "hvd-test-%d" % os.getpid())
        try:
            os.mkdir(self.group)
        except OSError as error:
            raise unittest.SkipTest("a systemd needs a control group of its own: %s" % error)
        test.addCleanup(self.remove_groups)
        inner = [
            "unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--cgroup", "sh",
            self.directory + "/begin", self.directory, shared,
            os.path.dirname(BIN), SYSTEMD
        ]
        self.process = subprocess.Popen([
            "sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.group, *network.enter(host), *inner
        ], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True)
        test.addCleanup(self.close)
        self.until(
            "systemd begins", lambda: self.systemctl("is-system-running", check=False)[1].strip() in
            ("running", "degraded", "starting"))

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)

    def until(self, what, condition):
        deadline = time.monotonic() + 60 * PATIENCE
        while not condition():
            if self.process.poll() is not None:
                said = self.process.communicate()[1]
                raise unittest.SkipTest("a systemd in namespaces: %s" %
                                        said) if "begins" in what else AssertionError(what, said)
            if time.monotonic() > deadline:
                raise AssertionError("%s: not within %g s" % (what, 60 * PATIENCE))
            time.sleep(0.05)

    def first(self):
        """Number of the process that is PID 1 there."""
        try:
            with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as file:
                return int(file.read().split()[0])
        except (OSError, IndexError):
            return None

    def systemctl(self, *words, check=True):
        first = self.first()
        if first is None:
            return 1, ""
        done = subprocess.run(
            ["nsenter", "--target",
             str(first), "--mount", "--pid", "--cgroup", "systemctl", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
        assert not check or done.returncode == 0, done.stdout
        return done.returncode, done.stdout

    def shows(self, unit, *properties):
        text = self.systemctl("show", unit, *("--property=" + name for name in properties))[1]
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return tuple(found.get(name) for name in properties)

    def close(self):
        first = self.first()
        if first is not None:
            try:
                os.kill(first, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.process.wait(20 * PATIENCE)
        finally:
            self.process.stderr.close()

    def remove_groups(self):
        for folder, _, _ in os.walk(self.group, topdown=False):
            for _ in range(200):
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:  # its last process is being taken away
                    time.sleep(0.05)


class Systemd(ScenarioTest):
    def setUp(self):
        super().setUp()
        if not SYSTEMD or not shutil.which("systemctl"):
            self.skipTest("systemd is not installed")

    @staticmethod
    def unit(name, shared, **variables):
        """The example's own file, with what an administrator would say by systemctl edit, and no boot around
        it."""
        with open(os.path.join(UNITS, name)) as file:
            own = file.read()
        settings = " ".join("%s=%s" % pair for pair in variables.items())
        edit = [
            "[Unit]", "DefaultDependencies=no", "[Service]", "LoadCredential=",
            "LoadCredential=secret:/run/test/secret",
            "BindPaths=%s" % shared,
            "Environment=%s" % settings, "RestartSec=1", ""
        ]
        return {name: own, name + ".d/test.conf": "\n".join(edit)}

    @staticmethod
    def begun(*names):
        """What systemd starts with."""
        return {"network-online.target": "[Unit]\nDefaultDependencies=no\n",
                "test.target": "[Unit]\nDefaultDependencies=no\nWants=%s\n" % " ".join(names)}

    def units(self, address, job, **variables):
        return {
            **self.unit("hvd-agent.service", job.directory, HVD_DRIVER_ADDRESS=address, HVD_HOST="two",
                        **variables),
            **self.begun("hvd-agent.service")
        }

    def start(self, worker, **more):
        """A driver on host one, which takes agents as they come."""
        def prepare(job):
            os.chmod(job.directory, 0o777)  # the service's user is another one at each start
            self.network = Network(self.addCleanup, job.directory, ("one", "two"), (4,))
            secret = os.path.join(job.directory, "secret")
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(SECRET + "\n")
            for name in os.listdir(job.directory):
                if name.startswith("gate."):
                    os.chmod(os.path.join(job.directory, name), 0o666)
            return self.network.enter("one") + [
                "env", "--chdir=" + job.directory,
                os.path.join(BIN, "hvdrun"), "--driver", "--listen", "10.77.0.1", "--secret-file", secret
            ]
        job = Job(self, None, worker, prepare=prepare, script=False, **more)
        said = job.wait("hvdrun", text=containing(r"listens at"))["text"]
        return job, re.search(r"listens at (\S+),", said).group(1)

    def agent(self, job, address, host):
        agent = subprocess.Popen(
            self.network.enter(host) + [
                os.path.join(BIN, "hvdrun"), "--join", address, "--slots", "1", "--secret-file",
                os.path.join(job.directory, "secret")
            ], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            if agent.poll() is None:
                agent.kill()
            agent.wait()
        self.addCleanup(end)
        return agent

    @staticmethod
    def running(program):
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and os.path.basename(os.readlink("/proc/%s/exe" % name)) == program:
                    yield int(name)
            except OSError:
                pass

    def test_the_agent_s_unit(self):
        job, address = self.start(["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "term=1"], np=2,
                                  min_np=1, max_np=2, options={"local_hosts": 0})
        first = self.agent(job, address, "one")
        machine = Machine(self, self.network, "two", job.directory, self.units(address, job))
        gate = job.wait("gate", step=10, size=2)
        self.assertEqual(gate["host"], "one")
        job.wait("train", host="two")
        workers = [pid for pid in self.running("scenario_worker") if self.network.inside("two", pid)]
        self.assertEqual(len(workers), 1)
        self.assertNotEqual(os.stat("/proc/%d" % workers[0]).st_uid, 0, "it runs as root")

        # To stop it drains: its worker leaves with the next commit, and nobody repeats a step.
        stopping = subprocess.Popen([
            "nsenter", "--target",
            str(machine.first()), "--mount", "--pid", "--cgroup", "systemctl", "stop", "hvd-agent"
        ], stdin=subprocess.DEVNULL)
        self.addCleanup(stopping.wait)
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=20, size=1)
        self.assertEqual(stopping.wait(60 * PATIENCE), 0)
        self.assertEqual(machine.shows("hvd-agent", "ActiveState", "Result", "ExecMainStatus"),
                         ("inactive", "success", "0"))
        job.assert_no_step_twice()
        self.assertEqual([event["host"] for event in job.find("left")], ["two"])

        job.finish(0)
        first.wait(30 * PATIENCE)
        job.verify(30, workers=1)

    def test_the_notice_s_unit(self):
        """EC2 says that the machine goes: its worker leaves, and nobody repeats a step."""
        job, address = self.start(["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "term=1"], np=2,
                                  min_np=1, max_np=2, options={"local_hosts": 0})
        first = self.agent(job, address, "one")
        subprocess.run(
            self.network.enter("two") + ["ip", "address", "add", "169.254.169.254/32", "dev", "lo"],
            check=True)
        notice = os.path.join(job.directory, "notice")
        cloud = Lines(self,
                      self.network.enter("two") + [sys.executable, "-c", METADATA, notice], dict(os.environ))
        units = {
            **self.units(address, job),
            **self.unit("hvd-notice@.service", job.directory, HVD_DRIVER_ADDRESS=address, HVD_HOST="two"),
            **self.begun("hvd-agent.service", "hvd-notice@aws.service")
        }
        machine = Machine(self, self.network, "two", job.directory, units,
                          [("hvd-notice-aws", os.path.join(ROOT, "tools", "hvd-notice"))])
        job.wait("gate", step=10, size=2)
        job.wait("train", host="two")
        cloud.wait("asked", timeout=60)
        with open(notice, "w"):
            pass
        job.wait_interrupt(2, timeout=60)
        job.open("step.10")
        job.wait("gate", step=20, size=1)
        machine.until("the notice is over", lambda: machine.shows("hvd-notice@aws", "ActiveState") ==
                      ("inactive", ))
        self.assertEqual(machine.shows("hvd-notice@aws", "Result", "ExecMainStatus"), ("success", "0"))
        job.assert_no_step_twice()
        self.assertEqual([event["host"] for event in job.find("left")], ["two"])
        job.finish(0)
        first.wait(30 * PATIENCE)
        job.verify(30, workers=1)

    def test_the_driver_s_unit(self):
        """It is killed with all that it has; systemd starts it again, and it takes the job over from its
        journal."""
        directory = tempfile.mkdtemp(prefix="hvd-scenario-")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        os.chmod(directory, 0o777)
        network = Network(self.addCleanup, directory, ("one", "two"), (4,))
        secret, sink = os.path.join(directory, "secret"), os.path.join(directory, "sink")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(SECRET + "\n")
        os.mkfifo(sink)
        kept = os.open(sink, os.O_RDWR)
        self.addCleanup(os.close, kept)
        said = Lines(self, ["cat", sink], dict(os.environ))
        units = {
            **self.unit("hvd-driver.service", directory, HVD_NP=2, HVD_MIN_NP=1, HVD_MAX_NP=2),
            **self.begun("hvd-driver.service")
        }
        machine = Machine(self, network, "one", directory, units, [("train", "/bin/true")])
        # The agent's own command wins over the unit's.
        environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith("HVD_") or name == "HVD_PLUGIN_PATH"
        }
        agent = Lines(
            self,
            network.enter("two") + [
                os.path.join(BIN, "hvdrun"), "--join", "10.77.0.1:7300", "--slots", "2", "--secret-file",
                secret, "--",
                os.path.join(BIN, "scenario_worker"),
                "steps=%d" % (300 * PATIENCE), "commit=1", "pace=10"
            ], {**environment, **WORKER_ENVIRONMENT, "HVD_TEST_DIR": directory, "HVD_TEST_SINK": sink})
        said.wait('"ev":"step".*"step":20[,}]', timeout=60)
        machine.systemctl("kill", "--signal=KILL", "--kill-whom=all", "hvd-driver")
        said.wait('"ev":"event_driver_back"', timeout=60)
        self.assertEqual(machine.shows("hvd-driver", "NRestarts"), ("1",))
        self.assertEqual(agent.finish(), 0, agent.lines)
        machine.until("the job is over", lambda: machine.shows("hvd-driver", "ActiveState") == ("inactive",))
        self.assertEqual(machine.shows("hvd-driver", "Result", "ExecMainStatus"), ("success", "0"))
        self.assertEqual({event["step"] for event in said.events("done")}, {300 * PATIENCE})
        steps = [(event["worker"], event["step"]) for event in said.events("step")]
        self.assertEqual(len(steps), len(set(steps)), "a step was repeated")

    def test_what_another_try_mends_and_what_it_does_not(self):
        job, address = self.start(["steps=10", "gate=5"], np=1, options={"local_hosts": 0})
        self.agent(job, address, "one")
        job.wait("gate", step=5)
        units = self.units("10.77.0.1:1", job, HVD_AGENT_TIMEOUT="0.5")  # nobody listens there
        machine = Machine(self, self.network, "two", job.directory, units)
        machine.until("started again after 75", lambda: int(machine.shows("hvd-agent", "NRestarts")[0]) >= 2)
        machine.systemctl("stop", "hvd-agent")
        machine.write("secret", "another" * 6 + "\n", 0o600)
        with open(os.path.join(machine.directory, "run/systemd/system/hvd-agent.service.d/test.conf"),
                  "a") as file:
            file.write("Environment=HVD_DRIVER_ADDRESS=%s\n" % address)
        machine.systemctl("daemon-reload")
        machine.systemctl("start", "hvd-agent")
        machine.until("refused", lambda: machine.shows("hvd-agent", "ActiveState") == ("failed",))
        self.assertEqual(machine.shows("hvd-agent", "Result", "ExecMainStatus"), ("exit-code", "76"))
        job.finish(0)


if __name__ == "__main__":
    main()
