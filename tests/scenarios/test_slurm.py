"""An elastic job within one allocation of Slurm: a node is drained, used again, killed, and comes back.

Slurm is Debian's, with a slurmd on each of two hosts that have networks of their own (../api/slurm.py).
"""

import json
import os
import shutil
import sys
import tempfile
import unittest

from harness import BIN, PATIENCE, Job, ScenarioTest, containing, main

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "api")]
import slurm  # noqa: E402
from network import Network  # noqa: E402

TOOLS = os.path.join(HERE, "..", "..", "tools")


class Allocation(ScenarioTest):
    def setUp(self):
        super().setUp()
        if slurm.missing():
            raise unittest.SkipTest(slurm.missing())

    def start(self, worker, **more):
        """hvdrun on node one, as examples/deploy/slurm/train.sbatch starts it."""
        def prepare(job):
            self.network = Network(self.addCleanup, job.directory, slurm.NODES, (4,))
            own = ("HVD_", "OMPI_", "SLURM_", "SBATCH_", "PMI_", "PMIX_", "MASTER_")
            clean = {
                k: v for k, v in job.environment.items() if not k.startswith(own) or k == "HVD_PLUGIN_PATH"
            }
            self.slurm = slurm.Slurm(clean, self.network)
            self.addCleanup(self.end)
            return self.network.enter("one") + [
                "env", "--chdir=" + job.directory, "SLURM_CONF=" + self.slurm.environment["SLURM_CONF"],
                "salloc", "--quiet", "--no-kill", "-N", "2", "--ntasks-per-node=2",
                os.path.join(BIN, "hvdrun")
            ]

        return Job(
            self, None, worker, prepare=prepare, script=False, options={
                "local_hosts": 0, "connect_timeout": 20 * PATIENCE, "heartbeat_timeout": 10 * PATIENCE,
                "agent_timeout": 3 * PATIENCE
            }, flags=[
                "--host-discovery-script",
                os.path.join(TOOLS, "hvd-hosts-slurm"), "--agent", "srun --overlap -N1 -n1 -w {host}"
            ], **more)

    def test_the_batch_script(self):
        """examples/deploy/slurm/train.sbatch as it stands, on two nodes."""
        directory = tempfile.mkdtemp(prefix="hvd-sbatch-")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        self.network = Network(self.addCleanup, directory, slurm.NODES, (4,))
        own = ("HVD_", "OMPI_", "SLURM_", "SBATCH_", "PMI_", "PMIX_", "MASTER_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(own) or k == "HVD_PLUGIN_PATH"}
        self.slurm = slurm.Slurm(
            {**clean, "PATH": ":".join((BIN, TOOLS, clean["PATH"])), "HVD_TEST_DIR": directory}, self.network)
        self.addCleanup(self.end)
        out = os.path.join(directory, "out")
        script = os.path.join(HERE, "..", "..", "examples", "deploy", "slurm", "train.sbatch")
        status, said, err = self.slurm.run([
            "sbatch", "--wait", "-N", "2", "--chdir", directory, "-o", out, script,
            os.path.join(BIN, "scenario_worker"), "steps=20", "commit=5"
        ], timeout=120)
        with open(out) as file:
            text = file.read()
        self.assertEqual(status, 0, said + err + text)
        self.assertIn("hvdrun: job succeeded", text)
        done = [json.loads(line.split("] ", 1)[1]) for line in text.splitlines() if '"ev":"done"' in line]
        self.assertEqual({event["step"] for event in done}, {20})
        self.assertTrue(any(event["host"] == "two" for event in done), text)

    def end(self):
        left = self.slurm.close()
        self.assertEqual(left, [], "tasks were left behind")

    def node(self, name, state):
        status, out, err = self.slurm.run(
            ["scontrol", "update", "nodename=" + name, "state=" + state, "reason=test"])
        self.assertEqual(status, 0, out + err)

    def test_a_node_is_drained_used_again_killed_and_comes_back(self):
        job = self.start(["steps=50", "commit=1", "log=3", *("gate=%d" % step for step in (10, 20, 30, 40))],
                         np=4, min_np=2, max_np=4)
        job.wait("gate", step=10, size=4)
        for event in job.find("train"):
            self.assertTrue(self.network.inside(event["host"], event["pid"]), event["line"])

        self.node("two", "drain")
        job.wait_interrupt(4)
        job.open("step.10")
        job.wait("gate", step=20, size=2)
        job.assert_no_step_twice()  # who is drained costs no step
        self.assertEqual(job.find("interrupted", status="HVD_PEER_LOST"), [])

        mark = job.mark()
        self.node("two", "resume")
        job.wait("start", host="two", count=4)
        job.wait_interrupt(2, since=mark)
        job.open("step.20")
        job.wait("gate", step=30, size=4)
        job.assert_no_step_twice()

        mark = job.mark()
        self.slurm.kill_node("two")
        job.wait("event_peer_lost", since=mark, count=2)
        job.open("step.30")
        job.wait("train", since=mark, size=2, count=2)
        # srun does not see that the node has gone: the agent is given up, and others are tried.
        job.wait("hvdrun", since=mark, text=containing("the agent of host two was away"))
        mark = job.mark()
        self.slurm.start_node("two")
        job.wait("start", host="two", count=6)
        job.wait_interrupt(2, since=mark, timeout=60)
        job.open("step.40")
        job.finish(0)
        done = job.verify(50)
        self.assertEqual({event["host"] for event in done}, {"one", "two"})
        self.assertEqual(len(job.find("start", host="one")), 2, "those of node one were never started anew")


if __name__ == "__main__":
    main()
