"""Workers that agents start by OpenSSH, on hosts of their own (network.py)."""

import os
import shutil
import signal
import subprocess
import sys
import time

from harness import BIN, PATIENCE, Job, ScenarioTest, containing, main
from processes import stop

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from network import Network  # noqa: E402

HVDRUN = os.path.join(BIN, "hvdrun")
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
WORKER = os.path.join(BIN, "scenario_worker")


def agents(inside=lambda pid: True):
    """Process numbers of the agents that run there."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink("/proc/%s/exe" % name) == HVDRUN and inside(int(name)):
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    if b"--join" in file.read().split(b"\0"):
                        found.append(int(name))
        except OSError:
            pass
    return found


class Ssh(ScenarioTest):
    """hvdrun on host one; sshd on the others, with keys that are made here."""

    def setUp(self):
        super().setUp()
        if not SSHD or not shutil.which("ssh-keygen"):
            self.skipTest("agents by ssh need openssh-server")

    def file(self, name, text="", mode=0o600):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def key(self, name):
        path = os.path.join(self.directory, name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True,
                       stdin=subprocess.DEVNULL)
        with open(path + ".pub") as file:
            return path, file.read()

    def start_sshd(self, host):
        path, public = self.key("host_" + host)
        address = self.network.address(host)
        with open(os.path.join(self.directory, "known_hosts"), "a") as file:
            file.write("%s,%s %s" % (host, address, public))
        config = self.file(
            "sshd_" + host, "\n".join([
                "ListenAddress " + address, "HostKey " + path,
                "AuthorizedKeysFile " + os.path.join(self.directory, "user.pub"),
                "Banner " + self.file("banner", "Unauthorized use is prohibited.\n", 0o644), "StrictModes no",
                "UsePAM no", "PidFile none", "PasswordAuthentication no", "PermitRootLogin yes",
                "SetEnv TMPDIR=%s" % os.path.join(self.directory, host), ""
            ]))
        os.makedirs("/run/sshd", exist_ok=True)
        server = subprocess.Popen(
            self.network.enter(host) + [SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (server.kill(), server.wait(), server.stderr.close()))
        while True:
            line = server.stderr.readline()
            if not line:
                self.fail("no sshd on host %s" % host)
            if "Server listening" in line:
                return

    def job(self, hosts, worker, sshd=("two", "three"), agent=None, options=None, flags=(), before=None,
            start=None, **more):
        def prepare(job):
            self.directory = job.directory
            self.network = Network(self.addCleanup, job.directory, ("one", "two", "three"), (4,))
            user, _ = self.key("user")
            for host in sshd:
                self.start_sshd(host)
            self.ssh = (
                "ssh -F none -i %s -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=%s/known_hosts"
                " -o ConnectTimeout=10 {host}" % (user, job.directory))
            if before:
                before(job)
            if start:
                return start(job)
            return self.network.enter("one") + [
                "env", "--chdir=" + job.directory, HVDRUN, "--agent", (agent or "%s").replace("%s", self.ssh)
            ]
        return Job(self, hosts, worker, prepare=prepare, script=False, flags=flags,
                   options={"local_hosts": 0, "connect_timeout": 20 * PATIENCE, **(options or {})}, **more)

    def agent_of(self, host):
        found = agents(lambda pid: self.network.inside(host, pid))
        self.assertEqual(len(found), 1, "agents of host %s: %s" % (host, found))
        return found[0]

    def check_nothing_is_left(self):
        """One that was cut off may still have to learn that it is not wanted."""
        deadline = time.monotonic() + 30 * PATIENCE
        while left := agents(
                lambda pid: self.network.inside("two", pid) or self.network.inside("three", pid)):
            self.assertLess(time.monotonic(), deadline, "agents %s are still there" % left)
            time.sleep(0.05)

    def test_a_job_runs_on_three_hosts(self):
        job = self.job("one:1,two:2,three:1", ["steps=20", "commit=5", "gate=10"], np=4)
        job.wait("gate", step=10)
        for event in job.find("train"):
            self.assertTrue(self.network.inside(event["host"], event["pid"]), event["line"])
        for host in ("two", "three"):
            with open("/proc/%d/cmdline" % self.agent_of(host), "rb") as line, \
                    open("/proc/%d/environ" % self.agent_of(host), "rb") as environment:
                self.assertNotIn(b"hvd-key:", line.read() + environment.read())
        job.finish(0)
        job.verify(20, workers=4)
        self.assertEqual(job.generations(), [(1, 4)])
        self.check_nothing_is_left()

    def test_the_example_with_a_file_of_hosts_that_changes(self):
        """examples/deploy/ssh/train.sh: a line that goes takes its host out, one that comes is used."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "deploy",
                              "ssh", "train.sh")

        def through_the_script(job):
            """What hvdrun is told beside its command reaches it by a hvdrun that comes first in PATH."""
            os.mkdir(os.path.join(job.directory, "bin"))
            self.file("bin/hvdrun", '#!/bin/sh\nexec %s $FLAGS "$@"\n' % HVDRUN, 0o755)
            table = self.file("hosts.txt", "# of the test\none slots=1\n  two slots=1  # a comment\n")
            begin = self.file(
                "begin",
                'while [ "$1" != %s ]; do FLAGS="$FLAGS $1"; shift; done\nexport FLAGS\nexec sh %s %s "$@"\n'
                % (WORKER, script, table))
            return self.network.enter("one") + [
                "env", "--chdir=" + job.directory,
                "PATH=%s/bin:%s" % (job.directory, os.environ["PATH"]),
                "TRAIN_SSH=" + self.ssh.replace(" {host}", ""), "sh", begin
            ]

        job = self.job(None, ["steps=40", "commit=1", "log=3", "gate=10", "gate=20", "gate=30"], np=2,
                       start=through_the_script, options={"agent_program": HVDRUN})
        job.wait("gate", step=10, size=2)
        self.file("hosts.txt", "one slots=1\ntwo slots=1\nthree slots=1\n")
        job.wait("start", host="three")
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        mark = job.mark()
        self.file("hosts.txt", "one slots=1\nthree slots=1\n")
        job.wait_interrupt(3, since=mark)
        job.open("step.20")
        job.wait("gate", step=30, size=2)
        job.finish(0)
        job.verify(40, workers=2)
        job.assert_no_step_twice()
        self.assertEqual({event["host"] for event in job.find("done")}, {"one", "three"})

    def test_what_reaches_a_worker(self):
        show = 'echo "at $(umask) $(pwd) $LANG $GIVEN $TMPDIR $(id -u)"; exec "$@"'
        before = os.umask(0o027)
        self.addCleanup(os.umask, before)
        job = self.job("two:1", ["steps=3"], np=1, environment={"LANG": "de_DE.UTF-8", "GIVEN": "no"},
                       flags=["-x", "GIVEN=a b'c", "--", "sh", "-c", show, "sh"])
        os.umask(before)
        job.finish(0)
        at = job.wait("raw", text=containing(r"\] at "))["text"]
        self.assertEqual(at.split("] ", 1)[1], "at 0027 %s de_DE.UTF-8 a b'c %s/two %d" %
                         (job.directory, job.directory, os.getuid()))

    def test_a_worker_of_another_host_is_killed(self):
        job = self.job("one:1,two:2", ["steps=15", "commit=5", "gate=12"], np=3, min_np=2,
                       faults="before_allreduce:two/*/*/1/7/*=kill")
        job.wait("start", host="two", count=3)
        job.open("step.12")
        job.finish(0)
        job.verify(15)
        self.assertGreater(len(job.generations()), 1)

    def test_an_agent_is_killed(self):
        job = self.job("one:2,two:1", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=3, min_np=2)
        job.wait("gate", step=10)
        os.kill(self.agent_of("two"), signal.SIGKILL)
        job.wait("hvdrun", text=containing("host two's agent is over"))
        job.open("step.10")  # its worker goes with it; the others go on
        job.wait("start", host="two", count=2)  # by another agent
        job.open("step.20")
        job.finish(0)
        job.verify(30)
        self.check_nothing_is_left()

    def test_an_agent_is_stopped_for_a_while(self):
        job = self.job("one:1,two:1", ["steps=30", "commit=5", "gate=10", "gate=20"], np=2,
                       options={"heartbeat_timeout": 2 * PATIENCE})
        job.wait("gate", step=10)
        agent = self.agent_of("two")
        stop(agent)
        job.wait("hvdrun", text=containing("host two's agent is over"))
        job.open("step.10")  # its worker does not need it
        os.kill(agent, signal.SIGCONT)
        job.wait("hvdrun", text=containing("agent of host two is back"))
        job.open("step.20")
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations(), [(1, 2)])

    def test_the_cable_of_a_host_is_pulled_and_put_back(self):
        job = self.job(
            "one:2,two:1", ["steps=40", "commit=1", "log=3", "gate=10", "gate=20", "gate=30"], np=3, min_np=2,
            options={
                "heartbeat_timeout": 2 * PATIENCE, "agent_timeout": 6 * PATIENCE,
                "connect_timeout": 5 * PATIENCE
            })
        job.wait("gate", step=10)
        self.network.cut("two")
        job.open("step.10")
        job.wait("gate", step=20)  # without it
        self.network.mend("two")
        job.open("step.20")
        job.wait("start", host="two", count=2)
        job.open("step.30")
        job.finish(0)
        self.check_nothing_is_left()

    def test_a_host_without_sshd(self):
        job = self.job("one:1,two:1,three:1", ["steps=10", "commit=5", "gate=5"], np=2, min_np=2, max_np=3,
                       sshd=("two", ), options={"blocklist_after": 1})
        job.wait(
            "hvdrun",
            text=containing(r"the agent of host three can't be started: ssh .* three .*hvdrun --join .*"
                            r"exited with status 255; its last lines: .*Connection refused"))
        job.finish(0)
        job.verify(10, workers=2)

    def test_an_sshd_that_hangs_and_one_that_refuses_the_key(self):
        """Host three takes connections and says nothing; host two lets nobody in."""
        limit = min(3 * PATIENCE, 9)  # ssh itself waits 10 s
        silent = "import socket, sys; s = socket.create_server(('', 22)); print('ready', flush=True); sys.stdin.read()"

        def harm(job):
            listener = subprocess.Popen(
                self.network.enter("three") + [sys.executable, "-c", silent], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True)
            self.addCleanup(lambda: listener.communicate())
            self.assertEqual(listener.stdout.readline(), "ready\n")
            self.file("user.pub")

        job = self.job("one:1,two:1,three:1", ["steps=10", "commit=5", "gate=5"], np=1, min_np=1, max_np=3,
                       sshd=("two", ), options={"blocklist_after": 1,
                                                "connect_timeout": limit}, before=harm)
        job.wait(
            "hvdrun", text=containing(
                r"agent of host two can't be started: ssh .* exited with status 255; its last lines: "
                r"Unauthorized use is prohibited. \| .*Permission denied"))
        job.wait("hvdrun",
                 text=containing(r"agent of host three did not connect within %g s" % limit))
        job.finish(0)
        job.verify(10, workers=1)

    def test_a_way_that_hangs(self):
        hang = "sh -c 'test {host} != three || exec sleep 1000; exec \"$@\"' sh %s"
        job = self.job("one:1,two:1,three:1", ["steps=10", "commit=5"], np=2, min_np=2, max_np=3, agent=hang,
                       options={"blocklist_after": 1, "connect_timeout": 10 * PATIENCE})
        job.finish(0)
        job.verify(10)

    def test_a_way_that_talks(self):
        talk = "sh -c 'echo Welcome to {host}; echo Unauthorized use is prohibited >&2; exec \"$@\"' sh %s"
        job = self.job("two:1,three:1", ["steps=10", "commit=5"], np=2, agent=talk)
        job.finish(0)
        job.verify(10, workers=2)

    def test_a_directory_that_is_not_there(self):
        job = self.job("two:1", ["steps=3"], np=1,
                       options={"blocklist_after": 1, "elastic_timeout": 8 * PATIENCE,
                                "join_settle": 1}, flags=["--", "/nonexistent/program"])
        job.finish(1)
        self.assertTrue(
            job.find("hvdrun", text=containing(r"host two: .*/nonexistent/program is no executable file")))


if __name__ == "__main__":
    main()
