"""What a job may not have: memory, by a control group; /dev/shm, by a mount; a reader of its output."""

import array
import fcntl
import os
import signal
import subprocess
import termios
import time
import unittest

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
        job.wait("hvdrun", text=containing(r"\(host b, slot 0.*\).* killed by signal 9"), count=2)
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
        job.send_signal(job.find("train", rank=1)[0], signal.SIGKILL)
        job.wait("hvdrun", text=containing("lost: (connection closed|killed by signal 9)"))
        job.finish(0)
        job.verify(20)

    def test_who_is_told_twice_ends_though_nobody_reads_its_output(self):
        hvdrun = subprocess.Popen(
            [os.path.join(BIN, "hvdrun"), "-np", "1", "-H", "localhost:1", "--set", "stop_grace=1", "yes"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(hvdrun.stdout.close)

        def end():
            if hvdrun.poll() is None:
                hvdrun.kill()
            hvdrun.wait()
        self.addCleanup(end)
        waiting, before = array.array("i", [0]), -1
        deadline = time.monotonic() + 30 * PATIENCE
        while before < 4096 or waiting[0] != before:  # nothing more fits into the pipe
            self.assertLess(time.monotonic(), deadline)
            before = waiting[0]
            time.sleep(0.5)
            fcntl.ioctl(hvdrun.stdout, termios.FIONREAD, waiting)
        hvdrun.send_signal(signal.SIGTERM)
        hvdrun.send_signal(signal.SIGINT)  # of two of a kind that wait at a time one would be lost
        self.assertIn(hvdrun.wait(60 * PATIENCE),
                      (128 + signal.SIGTERM, 128 + signal.SIGINT))  # whichever was first


if __name__ == "__main__":
    main()
