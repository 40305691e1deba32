"""Workers that stop or hang, and a driver that dies (F6, F7, F9)."""

import os
import signal

from harness import PATIENCE, Job, ScenarioTest, containing, main
from processes import stop, wait_for_exit

NO_RESTART = {"restart": "false"}


class Liveness(ScenarioTest):
    def test_F6_a_stopped_worker_is_replaced_and_fenced_when_it_comes_back(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "gate=10", "gate=20", "noterm=1"], np=3, min_np=2,
                  max_np=3, options={"heartbeat_timeout": 1.5, "stop_grace": 30})
        job.wait("gate", step=10)
        stopped = job.wait("train", gen=1, rank=1)
        stop(stopped["pid"])
        job.open("step.10")
        lost = job.wait("event_peer_lost", pid=lambda pid: pid != stopped["pid"])
        self.assertIn(lost["rank"], (1, -1))
        job.wait("gate", step=20)
        mark = job.mark()
        job.send_signal(stopped, signal.SIGCONT)
        end = job.wait("end", since=mark, pid=stopped["pid"])
        self.assertIn(end["status"], ("HVD_REMOVED", "HVD_REFUSED", "HVD_DRIVER_LOST", "HVD_JOB_FAILED"))
        self.assertTrue(wait_for_exit(stopped["pid"], 20), "the fenced worker does not end")
        interrupted = job.find("interrupted", since=mark, pid=lambda pid: pid != stopped["pid"],
                               status="HVD_PEER_LOST")
        self.assertEqual(interrupted, [], "the returning worker harmed somebody")
        job.open("step.20")
        job.finish(0)
        job.verify(30)
        self.assertNotIn(stopped["pid"], {e["pid"] for e in job.find("done")})

    def test_F6_workers_that_are_stopped_for_moments_only_miss_nothing(self):
        """Every stop wakes threads out of turn."""
        job = Job(self, "a:3", ["steps=2000", "commit=100", "gate=1", "gate=1999"], np=3, min_np=3, max_np=3,
                  options=NO_RESTART)
        job.wait("gate", step=1)
        workers = job.find("train", gen=1)
        job.open("step.1")
        for turn in range(600):
            if job.find("gate", step=1999):
                break
            for number in (signal.SIGSTOP, signal.SIGCONT):
                job.kill_if_alive(workers[turn % 3], number)
        job.wait("gate", step=1999)
        job.finish(0)
        job.verify(2000, workers=3)
        self.assertEqual(job.generations(), [(1, 3)])

    def test_F6_a_stopped_worker_is_killed_where_the_grace_is_short(self):
        job = Job(self, "a:3", ["steps=15", "commit=5"], np=3, min_np=2, max_np=3,
                  options={"heartbeat_timeout": 1.5, "stop_grace": 0.2, "restart": "false"},
                  faults="before_allreduce:*/*/0/*/7/*=stop")
        job.finish(0)
        job.verify(15, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    def test_F7_a_worker_that_never_joins_is_named(self):
        job = Job(self, "a:3", ["steps=10", "commit=5"], np=3, min_np=3, max_np=3, gates=["late"],
                  environment={"HVD_STALL_WARNING": "0.5"},
                  faults="between_collectives:*/*/1/*/7/*=gate(late)")
        job.wait("fault")
        warning = job.wait("log", level=4, msg=containing(r"count"))
        self.assertRegex(warning["msg"], r"\b1\b")
        job.wait("hvdrun",
                 text=containing(r"^warning: .*\b1 \(host a\).*count|^warning: .*count.*\b1 \(host a\)"))
        job.open("late")
        job.finish(0)
        job.verify(10, workers=3)
        self.assertEqual(job.find("interrupted"), [])

    def test_F7_a_worker_that_never_joins_is_evicted_where_that_is_switched_on(self):
        job = Job(self, "a:3", ["steps=10", "commit=5"], np=3, min_np=2, max_np=3,
                  options={"stall_shutdown": 1, "restart": "false"},
                  faults="between_collectives:*/*/1/*/7/*=hang")
        evicted = job.wait("fault")
        job.wait("hvdrun", text=containing(r"evicted: others waited .*count"))
        job.finish(0)
        job.verify(10, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])
        self.assertNotIn(evicted["pid"], {e["pid"] for e in job.find("done")})
        self.assertEqual([e["status"] for e in job.find("interrupted")], ["HVD_PEER_LOST"] * 2)

    def test_F7_the_wait_for_it_has_a_deadline(self):
        job = Job(self, "a:2", ["steps=10", "commit=5"], np=2, min_np=2, max_np=2,
                  environment={"HVD_OPERATION_TIMEOUT": "1", "HVD_SHUTDOWN_TIMEOUT": "1"},
                  options={"restart": "false", "elastic_timeout": 5 * PATIENCE},  # time to start, too
                  faults="between_collectives:*/*/1/*/7/*=hang")
        end = job.wait("interrupted", status="HVD_TIMEOUT")
        self.assertRegex(end["msg"], "count")
        self.assertRegex(end["msg"], r"rank.*1")
        job.finish(1)

    def test_F9_a_driver_that_is_stopped_costs_nothing(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "gate=10", "gate=20"], np=3, min_np=2, max_np=3,
                  sink=True, options={"heartbeat_timeout": 1, "restart": "false"})
        job.wait("gate", step=10)
        driver = job.driver()
        stop(driver)
        try:
            job.wait("log", msg=containing("has been silent for"), count=3)
            job.open("step.10")
            job.wait("gate", step=20)
        finally:
            os.kill(driver, signal.SIGCONT)
        job.wait("hvdrun", text=containing("the driver was held up for"))
        job.open("step.20")
        job.finish(0)
        job.verify(30, workers=3)
        self.assertEqual(job.generations(), [(1, 3)])
        self.assertEqual(job.find("interrupted"), [])

    def test_F9_of_a_driver_that_is_stopped_for_too_long_the_end_says_so(self):
        job = Job(self, "a:2", ["steps=20", "commit=5", "gate=7"], np=2, min_np=1, max_np=2, sink=True,
                  options={"driver_timeout": 0.5, "heartbeat_timeout": 0.5, "heartbeat_interval": 0.1})
        job.wait("gate", step=7)
        driver = job.driver()
        stop(driver)
        try:
            job.wait("event_driver_lost", msg=containing("is lost: silent for"), count=2)
            job.open("step.7")
            job.wait("end", status="HVD_DRIVER_LOST", count=2)
        finally:
            os.kill(driver, signal.SIGCONT)
        job.finish(1, sentence="the driver did not run for")

    def test_F9_workers_of_a_dead_driver_stop_and_keep_their_commit(self):
        job = Job(self, "a:2", ["steps=20", "commit=5", "gate=7"], np=2, min_np=2, max_np=2,
                  sink=True, options={"stop_grace": 10, "driver_timeout": 0.3})
        job.wait("gate", step=7)
        committed = job.wait("commit", step=5)
        workers = job.find("train")
        job.process.kill()  # and with it who would start another driver
        # Missed first, and given up after driver_timeout.
        job.wait("event_driver_lost", count=4)
        job.open("step.7")
        for worker in workers:
            end = job.wait("end", pid=worker["pid"])
            self.assertEqual(end["status"], "HVD_DRIVER_LOST")
            kept = job.wait("kept", pid=worker["pid"])
            self.assertEqual((kept["step"], kept["rev"], kept["sum"]),
                             (5, committed["rev"], committed["sum"]))
        for worker in workers:
            self.assertTrue(wait_for_exit(worker["pid"], 20))


if __name__ == "__main__":
    main()
