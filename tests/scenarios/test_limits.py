"""What a job may not have: memory, by a control group; /dev/shm, by a mount; a reader of its output."""

import array
import fcntl
import os
import pty
import resource
import signal
import subprocess
import tempfile
import termios
import time
import unittest
from unittest import mock

from harness import BIN, PATIENCE, Job, ScenarioTest, containing, main

MIB = 1 << 20


class Group:
    """A control group whose processes may have so much memory together. It goes with the test."""

    def __init__(self, test, most):
        name = "hvd-test-%d" % os.getpid()
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup",
                                                                                 "memory.max")):
            self.path = os.path.join(root, name)
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            test.addCleanup(os.rmdir, self.path)
            try:
                with open(os.path.join(self.path, limit), "w") as file:
                    file.write(str(most))
                return
            except OSError:  # the other version, or a tree without this controller
                continue
        raise unittest.SkipTest("a limit of memory needs a control group of the test's own")


class Limits(ScenarioTest):
    def _newcomer_with(self, most):
        """A state of 40 MiB: the kernel kills a worker whose group may have less memory than that takes, and
        its successors."""
        group = Group(self, most)
        wrapper = [
            "/bin/sh", "-c", '[ "$HVD_HOST" != b ] || echo $$ > "$0/cgroup.procs"; exec "$@"', group.path
        ]
        job = Job(self, "a:2",
                  ["steps=100000", "commit=1", "gate=10",
                   "pad=%d" % (40 * MIB), "pace=20", "term=1"], np=2, min_np=2, max_np=3, wrapper=wrapper,
                  options={"blocklist_after": 2})
        job.keep("train", "hvdrun", "gate", "end", "discovery")
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.open("step.10")
        job.wait("hvdrun", text=containing("host b is on the blocklist for good after 2 failures"),
                 timeout=90)
        # Its end is told with the loss, or behind it: whichever the driver has seen first.
        job.wait("hvdrun", text=containing(r"worker \d+ (on b lost:|\(host b, slot 0.*\)).* killed by signal 9"),
                 count=2)
        self.assertIsNone(job.process.poll())
        members = {event["pid"] for event in job.find("train", host="a")}
        self.assertEqual(len(members), 2, "a member was lost")
        self.assertEqual(job.find("end", host="a"), [])
        job.process.send_signal(signal.SIGTERM)
        job.process.wait(30 * PATIENCE)

    def test_a_newcomer_that_can_t_be_fed_is_killed_alone(self):
        self._newcomer_with(30 * MIB)

    def test_a_newcomer_that_has_the_state_once_and_not_twice_is_killed_alone(self):
        self._newcomer_with(70 * MIB)

    def test_shared_memory_needs_no_room_in_dev_shm(self):
        full = [
            "unshare", "--mount", "--propagation", "private", "sh", "-c",
            'mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && exec "$@"',
            "sh",
            os.path.join(BIN, "hvdrun")
        ]
        if os.geteuid() != 0:
            self.skipTest("a small /dev/shm needs root")
        job = Job(self, "a:3",
                  ["steps=20", "commit=5", "gate=10", "pad=%d" % (8 * MIB)], np=3, min_np=1, max_np=3,
                  script=False, environment={"HVD_LOCAL": "on"}, prepare=lambda _: full)
        job.wait("gate", step=10)
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.wait("hvdrun", text=containing("lost: (connection closed|killed by signal 9)"))
        job.finish(0)
        job.verify(20)

    def _start(self, command, stdout, stderr=subprocess.STDOUT, prepare=None, options=()):
        hvdrun = subprocess.Popen([
            os.path.join(BIN, "hvdrun"), "-np", "1", "-H", "localhost:1", "--set", "stop_grace=1", *options
        ] + command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, preexec_fn=prepare)

        def end():
            if hvdrun.poll() is None:
                hvdrun.kill()
            hvdrun.wait()
        self.addCleanup(end)
        return hvdrun

    def _directory(self):
        directory = tempfile.TemporaryDirectory(prefix="hvd-limits-")
        self.addCleanup(directory.cleanup)
        return directory.name

    def _until(self, what, done):
        deadline = time.monotonic() + 30 * PATIENCE
        while not done():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def _until_full(self, reader):
        """Until what waits there has not grown for half a second."""
        waiting, before, since = array.array("i", [0]), -1, time.monotonic()

        def full():
            nonlocal before, since
            fcntl.ioctl(reader, termios.FIONREAD, waiting)
            if waiting[0] != before:
                before, since = waiting[0], time.monotonic()
            return before >= 1024 and time.monotonic() > since + 0.5
        self._until("the output takes more and more", full)

    def test_who_is_told_twice_ends_though_nobody_reads_its_output(self):
        hvdrun = self._start(["yes"], subprocess.PIPE)
        self.addCleanup(hvdrun.stdout.close)
        self._until_full(hvdrun.stdout)
        hvdrun.send_signal(signal.SIGTERM)
        hvdrun.send_signal(signal.SIGINT)  # of two of a kind that wait at a time one would be lost
        self.assertIn(hvdrun.wait(60 * PATIENCE),
                      (128 + signal.SIGTERM, 128 + signal.SIGINT))  # whichever was first

    def _hears_the_first_signal(self, reader, stdout, stderr):
        """Its worker is told to leave while all of its output waits, and it ends when that has gone."""
        told = os.path.join(self._directory(), "told")
        program = "yes & trap 'echo told > %s; kill $!; exit 0' TERM; while :; do sleep 0.1; done" % told
        hvdrun = self._start(["sh", "-c", program], stdout, stderr)
        self._until_full(reader)
        hvdrun.send_signal(signal.SIGTERM)
        self._until("the worker was not told", lambda: os.path.exists(told))
        self.assertEqual(hvdrun.wait(60 * PATIENCE), 128 + signal.SIGTERM)

    def test_the_first_signal_is_heard_though_nobody_reads_a_pipe(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self._hears_the_first_signal(reader, writer, writer)
        os.close(writer)

    def test_the_first_signal_is_heard_though_nobody_reads_the_terminal(self):
        reader, terminal = pty.openpty()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, terminal)
        with mock.patch.dict(os.environ, TERM="xterm"):
            self._hears_the_first_signal(reader, terminal, terminal)

    def test_a_nul_that_a_worker_prints_does_not_end_its_line(self):
        hvdrun = self._start(["printf", r"one\0two\nthree\n"], subprocess.PIPE, subprocess.DEVNULL)
        said, _ = hvdrun.communicate(timeout=60 * PATIENCE)
        self.assertRegex(said, rb"(?m)^\[\S+\] onetwo\n\[\S+\] three$")

    def test_hvdrun_takes_the_descriptors_it_may_have_and_its_worker_has_what_was_set(self):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < 512:
            self.skipTest("the hard limit of descriptors is %d: no room between it and a soft one" % most)

        def prepare():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 512))

        seen = os.path.join(self._directory(), "seen")
        own = "s=$(ulimit -Sn) h=$(ulimit -Hn); echo $s $h"
        hvdrun = self._start(["sh", "-c", own + " > %s.new; mv %s.new %s; sleep 600" % (seen, seen, seen)],
                             subprocess.DEVNULL, prepare=prepare)
        self._until("no worker", lambda: os.path.exists(seen))
        with open(seen) as file:
            self.assertEqual(file.read().split(), ["200", "512"])
        self.assertEqual(resource.prlimit(hvdrun.pid, resource.RLIMIT_NOFILE), (512, 512))


if __name__ == "__main__":
    main()
