"""Workers that go as was wished, and spares that take the place of those that are lost (L1 to L7)."""

import os
import signal
import subprocess

from harness import BIN, PATIENCE, Job, ScenarioTest, containing, main
from processes import wait_for_exit


class Leaving(ScenarioTest):
    def assert_left_in_peace(self, job, count=1):
        """Those that left ended with success, have no rank any more, and the others restored nothing."""
        left = job.find("left")
        self.assertEqual(len(left), count)
        for event in left:
            self.assertEqual(event["rank"], -1)
            self.assertEqual([e["status"] for e in job.find("shutdown", pid=event["pid"])], ["HVD_OK"])
            self.assertEqual([e["status"] for e in job.find("exit", pid=event["pid"])], ["HVD_OK"])
        job.assert_no_step_twice()
        self.assertEqual(job.find("interrupted", status="HVD_PEER_LOST"), [])
        self.assertEqual({e["cause"] for e in job.find("recovery")}, {"HVD_HOSTS_UPDATED"})

    def test_L1_a_worker_leaves_and_nobody_repeats_a_step(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "term=1"], np=3,
                  min_np=2, max_np=3)
        job.wait("gate", step=10)
        job.send_signal(job.wait("train", rank=1), signal.SIGTERM)
        job.wait_interrupt(3)
        job.open("step.10")
        job.wait("left")
        job.wait("gate", step=20, size=2)
        job.finish(0)

        job.verify(30, workers=2)
        self.assert_left_in_peace(job)
        self.assertEqual([e["slot"] for e in job.find("left")], [1])
        self.assertEqual(job.sizes(30), [3] * 11 + [2] * 19)
        # The slot is there and max_np is 3: it is not filled again since a worker has left it.
        self.assertEqual(len(job.find("start")), 3)

    def test_L2_beside_it_a_worker_that_is_killed(self):
        job = Job(self, "a:3", ["steps=30", "commit=5", "log=3", "gate=13", "term=1"], np=3, min_np=2,
                  max_np=3)
        job.wait("gate", step=13)
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.wait("event_peer_lost", count=2)
        job.open("step.13")
        job.finish(0)
        job.verify(30)
        # Steps 11 to 13 had no commit after them: that is what a loss costs.
        repeated = [e for e in job.find("step", step=12) if e["rank"] == 0]
        self.assertEqual(len(repeated), 2)

    def test_L3_with_rare_commits_the_leaver_waits_for_the_next_one(self):
        job = Job(self, "a:3", ["steps=30", "commit=5", "log=3", "gate=13", "term=1"], np=3, min_np=2,
                  max_np=3)
        job.wait("gate", step=13)
        job.send_signal(job.wait("train", rank=1), signal.SIGTERM)
        job.wait_interrupt(3)
        job.open("step.13")
        job.finish(0)
        job.verify(30, workers=2)
        self.assert_left_in_peace(job)
        self.assertEqual(job.sizes(30), [3] * 15 + [2] * 15)

    def test_L4_rank_0_leaves_and_another_host_takes_its_place(self):
        job = Job(self, "a:2,b:1", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "term=1"], np=2,
                  min_np=2, max_np=2)
        job.wait("gate", step=10)
        job.send_signal(job.wait("train", rank=0), signal.SIGTERM)
        job.wait_interrupt(2)  # when the one on b is ready: two are the minimum
        job.open("step.10")
        job.wait("gate", step=20, size=2)
        job.finish(0)
        job.verify(30, workers=2)
        self.assert_left_in_peace(job)
        self.assertEqual([size for _, size in job.generations()], [2, 2])
        self.assertEqual([e["host"] for e in job.find("start")], ["a", "a", "b"])
        self.assertEqual(job.sizes(30), [2] * 30)

    def test_L5_past_its_deadline_a_leaver_is_lost(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "log=3", "gate=10", "term=1"], np=3, min_np=2,
                  max_np=3, options={"leave_timeout": 0.3})
        job.wait("gate", step=10)
        # Nobody comes to a commit while the gate is closed.
        job.send_signal(job.wait("train", rank=2), signal.SIGTERM)
        job.wait("hvdrun", text=containing("had not left within its time"))
        job.open("step.10")
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.find("left"), [])
        self.assertEqual([e["slot"] for e in job.find("end", status="HVD_REMOVED")], [2])
        self.assertEqual(len(job.find("start")), 3)

    def test_L6_the_last_worker_that_could_go_on_does_not_leave(self):
        job = Job(self, "a:2", ["steps=20", "commit=1", "log=2", "gate=10", "gate=12", "term=1"], np=2,
                  min_np=2, max_np=2, options={"leave_timeout": 60})
        job.wait("gate", step=10)
        job.send_signal(job.wait("train", rank=1), signal.SIGTERM)
        job.wait("hvdrun", text=containing("leaves within"))
        job.open("step.10")
        job.wait("gate", step=12, size=2)
        job.finish(0)
        job.verify(20, workers=2)
        self.assertEqual([size for _, size in job.generations()], [2])


class Operator(ScenarioTest):
    """hvdrun ctl drain, undrain, scale, stop."""

    def start(self, hosts, worker, **arguments):
        job = Job(self, hosts, worker, flags=["--address-file",
                                              os.path.join(self.directory(), "address")], **arguments)
        return job

    def directory(self):
        if not hasattr(self, "_directory"):
            import tempfile
            self._directory = tempfile.TemporaryDirectory()
            self.addCleanup(self._directory.cleanup)
        return self._directory.name

    def ctl(self, *words, status=0):
        done = subprocess.run([
            os.path.join(BIN, "hvdrun"), "ctl", "--address",
            os.path.join(self.directory(), "address"), *words
        ], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30 * PATIENCE)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def test_C1_a_host_is_drained_and_used_again(self):
        job = self.start("a:2,b:2", ["steps=40", "commit=1", "log=3", "gate=10", "gate=20", "gate=30"], np=4,
                         min_np=2, max_np=4)
        job.wait("gate", step=10)
        self.assertIn("2 workers leave within 30 s", self.ctl("drain", "b", "30s"))
        job.wait_interrupt(4)
        job.open("step.10")
        job.wait("gate", step=20, size=2)
        job.wait("left", host="b", count=2)
        mark = job.mark()
        self.assertIn("may be used again", self.ctl("undrain", "b"))
        job.wait("start", host="b", count=4)
        job.wait_interrupt(2, since=mark)
        job.open("step.20")
        job.wait("gate", step=30, size=4, timeout=40)
        job.finish(0)
        job.verify(40, workers=4)
        job.assert_no_step_twice()
        self.assertEqual(job.find("interrupted", status="HVD_PEER_LOST"), [])

    def test_C2_scale_down_and_up(self):
        job = self.start("a:3", ["steps=40", "commit=1", "log=3", "gate=10", "gate=20", "gate=30"], np=3,
                         min_np=1, max_np=3)
        job.wait("gate", step=10)
        self.assertIn("expected 1 to 3", self.ctl("scale", "7", status=2))
        self.ctl("scale", "1")
        job.wait_interrupt(3)
        job.open("step.10")
        job.wait("gate", step=20, size=1)
        job.wait("left", count=2)
        self.assertEqual(sorted(e["slot"] for e in job.find("left")), [1, 2])
        mark = job.mark()
        self.ctl("scale", "2")
        job.wait("start", count=4)
        job.wait_interrupt(1, since=mark)
        job.open("step.20")
        job.wait("gate", step=30, size=2, timeout=40)
        job.finish(0)
        job.verify(40, workers=2)
        job.assert_no_step_twice()

    def test_C3_wishes_that_make_no_sense_are_answered(self):
        job = self.start("a:2", ["steps=20", "commit=1", "gate=10"], np=2, min_np=2, max_np=2)
        job.wait("gate", step=10)
        for words, said in ((["drain", "nowhere"], "no host 'nowhere'.*expected one of a"),
                            (["drain"], "HOST"), (["drain", "a",
                                                   "soon"], "'soon'"), (["undrain", "a"], "is not drained"),
                            (["scale", "x"], "'x'"), (["scale",
                                                       "0"], "'0'"), (["explode"], "no verb 'explode'")):
            self.assertRegex(self.ctl(*words, status=2), said)
        self.ctl("stop", "enough")
        job.finish(1, "stopped by an operator: enough")


class Spares(ScenarioTest):
    def start(self, **options):
        job = Job(self, "a:3", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "term=1"], np=2,
                  min_np=2, max_np=2, options={"spares": 1, **options})
        job.wait("gate", step=10)
        job.wait("log", msg=containing("waits for a place"))
        return job

    def test_S1_a_spare_takes_the_place_of_a_worker_that_is_killed(self):
        job = self.start()
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.wait("event_peer_lost")
        job.open("step.10")
        job.wait("train", size=2, gen=2, count=2)
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations()[:2], [(1, 2), (2, 2)])
        self.assertEqual([e["spares"] for e in job.find("recovery", to=2)], [1])

    def test_S2_a_spare_takes_the_place_of_a_worker_that_leaves(self):
        job = self.start()
        job.send_signal(job.wait("train", rank=1), signal.SIGTERM)
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=20, size=2)
        job.finish(0)
        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 2])
        self.assertEqual(len(job.find("left")), 1)
        self.assertEqual([e["spares"] for e in job.find("recovery", to=2)], [1])
        self.assertEqual(job.sizes(30), [2] * 30)

    def test_S3_a_spare_waits_for_longer_than_init_timeout(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "log=3", "gate=10"], np=2, min_np=2, max_np=2,
                  options={"spares": 1}, environment={"HVD_INIT_TIMEOUT": "5"})
        job.wait("gate", step=10)
        spare = job.wait("log", msg=containing("waits for a place"))
        # Nothing happens to it: what could be waited for is its end, which would come with HVD_TIMEOUT.
        self.assertFalse(self.ends_within(spare["pid"], 6))
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.find("end", status="HVD_TIMEOUT"), [])

    @staticmethod
    def ends_within(pid, timeout):
        return wait_for_exit(pid, timeout)


if __name__ == "__main__":
    main()
