"""Wall clocks jump by an hour, each process's by itself, while a job loses a worker and gains one."""

import json
import os
import signal
import subprocess
import tempfile
import unittest

import clocks
from harness import AGENTS, BIN, PATIENCE, Job, ScenarioTest, main

HOUR = 3600
STEPS = 30


@unittest.skipUnless(clocks.library(), "libfaketime is not installed (scripts/install-deps.sh chaos)")
@unittest.skipIf(AGENTS, "the driver's clock is set in its own environment")
class Clocks(ScenarioTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.address = os.path.join(folder.name, "address")
        self.clocks = clocks.Clocks(os.path.join(folder.name, "clocks"))

    def driver_time(self):
        """Seconds by which the driver's clock differs from the machine's, as hvdrun ctl tells its time."""
        command = [os.path.join(BIN, "hvdrun"), "ctl", "--address", self.address, "--json", "status"]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60 * PATIENCE, check=True)
        return json.loads(told.stdout)["time"] - clocks.machine()

    def jump(self, *names):
        """One forth and the next one back, by turns: two hours lie between them."""
        for i, name in enumerate(names):
            self.clocks.set(name, HOUR if i % 2 == 0 else -HOUR)

    def test_a_kill_and_a_join(self):
        """Nothing waits for an hour, and nobody is lost for being silent that long."""
        job = Job(self, "a:3", ["steps=%d" % STEPS, "commit=1", "gate=10", "gate=20", "gate=25"], np=3, min_np=2,
                  max_np=3, flags=["--address-file", self.address], options={"restart": "false"},
                  environment={**self.clocks.for_workers(), **self.clocks.environment("driver")},
                  wrapper=["/bin/sh", "-c", self.clocks.WRAPPER + 'exec "$0" "$@"'])
        job.wait("gate", step=10)
        pids = [job.wait("train", gen=1, rank=rank)["pid"] for rank in range(3)]
        self.assertAlmostEqual(self.driver_time(), 0, delta=clocks.CLOSE_S)

        self.jump("driver", *pids)  # forth, back, forth, back
        mark = job.mark()
        os.kill(pids[2], signal.SIGKILL)
        self.jump(pids[0], "driver", pids[1])  # while they recover
        job.open("step.10")
        again = job.wait("train", gen=2, count=2, since=mark)
        self.assertEqual(again["size"], 2)
        self.assertAlmostEqual(self.driver_time(), -HOUR, delta=clocks.CLOSE_S)
        self.check_workers(job, pids[:2])

        job.wait("gate", step=20)
        mark = job.mark()
        job.set_hosts("a:3,b:1")
        newcomer = job.wait("start", since=mark, host="b")["pid"]
        self.jump("driver", newcomer, *pids[:2])
        job.open("step.20")
        self.assertEqual(job.wait("train", since=mark, pid=newcomer)["size"], 3)
        job.wait("gate", step=25)
        self.assertAlmostEqual(self.driver_time(), HOUR, delta=clocks.CLOSE_S)
        self.clocks.set(newcomer, HOUR)
        job.open("step.25")
        job.finish(0)
        job.verify(STEPS)
        self.check_workers(job, [*pids[:2], newcomer])
        self.assertEqual(len(job.find("start")), 4)
        self.assertEqual({e["pid"] for e in job.find("done")}, {*pids[:2], newcomer})
        self.assertEqual([size for _, size in job.generations()], [3, 2, 3])

    def check_workers(self, job, pids):
        """They have seen the hour, but not by their monotonic clock: wall clocks are compared with that."""
        for pid in pids:
            late = [e for e in job.find("step", pid=pid) if e["t"] > self.clocks.since[pid]]
            job.check(late or job.find("train", pid=pid), "worker %d says nothing" % pid)
            job.check(not self.clocks.wrong(late), "the clock of worker %d is not what was set" % pid)


if __name__ == "__main__":
    main()
