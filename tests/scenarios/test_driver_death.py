"""The driver dies, and the job goes on: nobody repeats a step, nobody is started again (contract 14, D1 to
D3)."""

import os
import signal
import subprocess
import tempfile
import unittest

from harness import AGENTS, HVDRUN, Job as AnyJob, ScenarioTest, containing, main
from processes import stop, wait_for_exit

QUIET = {"restart": "false"}


def Job(test, *arguments, flags=(), directory=None, **named):
    if directory is None:
        made = tempfile.TemporaryDirectory(prefix="hvd-journal-")
        test.addCleanup(made.cleanup)
        directory = made.name
    test.journal = directory
    # What a driver had read and not yet written goes with it: the workers' own file has everything.
    named.setdefault("sink", True)
    return AnyJob(test, *arguments, flags=("--journal", directory) + tuple(flags), **named)


class DriverDeath(ScenarioTest):
    def taken_over(self, job, since, times=1):
        job.wait("hvdrun", since=since, count=times, text=containing("taken over after"))

    def nothing_happened(self, job, steps, workers):
        """As if there had been one driver all the time."""
        job.verify(steps, workers=workers)
        self.assertEqual(job.generations(), [(1, workers)])
        self.assertEqual(job.find("interrupted"), [])
        self.assertEqual(len(job.find("start")), workers)
        did = [(event["pid"], event["step"]) for event in job.find("step")]
        self.assertEqual(len(did), len(set(did)), "a step was repeated")

    def test_D1_during_training_it_costs_nothing(self):
        job = Job(self, "a:3", ["steps=30", "commit=1", "gate=10", "gate=20"], np=3, min_np=1, max_np=3,
                  options=QUIET)
        job.wait("gate", step=10)
        _, mark = job.kill_driver()
        job.open("step.10")  # it trains without a driver, and with the new one
        self.taken_over(job, mark)
        job.wait("event_driver_lost", count=3)
        job.wait("event_driver_back", count=3)
        job.wait("gate", step=20)
        _, mark = job.kill_driver()
        self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 30, 3)

    def test_D1_as_by_control_z_it_is_the_first_process_that_stops_and_the_job_goes_on(self):
        job = Job(self, "a:2", ["steps=30", "commit=1", "gate=10", "gate=20"], np=2, min_np=1, max_np=2,
                  options=QUIET)
        job.wait("gate", step=10)
        stop(job.process.pid)  # SIGTSTP does nothing to a process without a shell
        job.open("step.10")
        job.wait("gate", step=20)
        _, mark = job.kill_driver()  # nobody is there who would start another
        job.wait("event_driver_lost", count=2)
        job.process.send_signal(signal.SIGCONT)  # "fg"
        self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 30, 2)

    def test_D1_a_loss_is_noticed_by_the_next_driver(self):
        job = Job(self, "a:3", ["steps=30", "commit=5", "gate=12", "gate=25"], np=3, min_np=1, max_np=3,
                  options=QUIET)
        job.wait("gate", step=12)
        _, mark = job.kill_driver()
        self.taken_over(job, mark)
        job.open("step.12")
        job.wait("gate", step=25)
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    def test_D1_with_a_worker_in_the_same_moment(self):
        job = Job(self, "a:3", ["steps=30", "commit=5", "gate=12"], np=3, min_np=1, max_np=3, options=QUIET)
        job.wait("gate", step=12)
        victim = job.wait("train", rank=1)
        os.kill(job.driver(), signal.SIGKILL)
        job.send_signal(victim, signal.SIGKILL)
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    def test_D1_before_and_after_a_worker(self):
        """Its peers may see the loss first, or learn of it by the driver that dies next."""
        for driver_first in (False, True, False, True):
            with self.subTest(driver_first=driver_first):
                job = Job(self, "a:3", ["steps=20", "commit=5", "gate=7"], np=3, min_np=1, max_np=3)
                job.wait("gate", step=7)
                victim = job.wait("train", rank=2)
                if driver_first:
                    job.kill_driver()
                    job.send_signal(victim, signal.SIGKILL)
                else:
                    job.send_signal(victim, signal.SIGKILL)
                    job.wait("interrupted")
                    job.kill_driver()
                job.finish(0)
                job.verify(20)
                self.assertEqual(len({event["pid"] for event in job.find("start")}) >= 3, True)

    def test_D1_while_the_first_generation_forms(self):
        job = Job(self, "a:3", ["steps=10", "commit=5"], np=3, min_np=3, max_np=3)
        job.wait("start")
        job.kill_driver()
        job.finish(0)
        job.verify(10, workers=3)

    def test_D1_again_and_again(self):
        job = Job(self, "a:3", ["steps=60", "commit=1", "pace=10"], np=3, min_np=1, max_np=3, options=QUIET)
        for step in (8, 24, 40):
            job.wait("step", count=3, step=step)
            _, mark = job.kill_driver()
            self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 60, 3)

    def test_D1_at_the_end_of_the_job(self):
        job = Job(self, "a:3", ["steps=10", "commit=5"], np=3, min_np=1, max_np=3, options=QUIET)
        job.wait("done")
        try:
            driver = job.driver()
            if driver != job.process.pid:
                os.kill(driver, signal.SIGKILL)
        except (OSError, AssertionError):
            pass  # it was faster
        job.finish(0)
        self.nothing_happened(job, 10, 3)

    def test_D1_newcomers_join_the_next_driver(self):
        job = Job(self, "a:2", ["steps=40", "commit=1", "gate=10", "gate=30", "log=3"], np=2, min_np=2,
                  max_np=3)
        job.wait("gate", step=10)
        _, mark = job.kill_driver()
        self.taken_over(job, mark)
        job.set_hosts("a:2,b:1")
        job.wait("start", host="b")
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=30)
        job.finish(0)
        job.verify(40, workers=3)
        self.assertEqual(job.generations(), [(1, 2), (2, 3)])

    def test_D1_by_default(self):
        job = AnyJob(self, "a:2", ["steps=20", "commit=1", "gate=7"], np=2, min_np=2, max_np=2, options=QUIET,
                     sink=True)
        job.wait("gate", step=7)
        _, mark = job.kill_driver()
        self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 20, 2)

    def test_D1_as_a_worker_joins(self):
        """The driver dies at any moment between the newcomer's start and its first step."""
        for moment in ("start", "init", "train"):
            with self.subTest(moment=moment):
                job = Job(self, "a:2", ["steps=1000000", "until=enough", "commit=1", "pace=5"], np=2,
                          min_np=2, max_np=3)
                job.wait("step", count=2, step=3)
                job.set_hosts("a:2,b:1")
                job.wait(moment, host="b")
                job.kill_driver()
                job.wait("train", host="b")
                job.finish(0)
                job.verify(job.find("done")[0]["step"], workers=3)
                self.assertEqual(len(job.find("start")), 3)

    def agent_of(self, host):
        found = []
        for name in os.listdir("/proc"):
            try:
                if not name.isdigit() or os.readlink("/proc/%s/exe" % name) != HVDRUN:
                    continue
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    if b"--join" in file.read().split(b"\0") and self.network.inside(host, int(name)):
                        found.append(int(name))
            except OSError:
                pass
        self.assertEqual(len(found), 1, "agents of host %s: %s" % (host, found))
        return found[0]

    @unittest.skipUnless(AGENTS, "of jobs with agents")
    def test_D1_with_an_agent_in_the_same_moment(self):
        job = Job(self, "a:2,b:1", ["steps=30", "commit=5", "gate=12"], np=3, min_np=1, max_np=3,
                  options=QUIET)
        job.wait("gate", step=12)
        agent, worker = self.agent_of("b"), job.wait("train", host="b")
        os.kill(job.driver(), signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        self.assertTrue(wait_for_exit(worker["pid"], 30))  # it goes with its agent
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    @unittest.skipUnless(AGENTS, "of jobs with agents")
    def test_D1_several_agents_come_back(self):
        job = Job(self, "a:1,b:1,c:1", ["steps=40", "commit=1", "gate=10", "gate=20"], np=3, min_np=1,
                  max_np=3, options=QUIET)
        job.wait("gate", step=10)
        for step in (10, 20):
            _, mark = job.kill_driver()
            job.open("step.%d" % step)
            self.taken_over(job, mark)
            if step == 10:
                job.wait("gate", step=20)
        job.finish(0)
        self.nothing_happened(job, 40, 3)
        agents = [e for e in job.find("hvdrun", text=containing("the agent of host . has come"))]
        self.assertEqual(len(agents), 3)  # and none was started anew

    def with_a_journal_that_is(self, harm):
        job = Job(self, "a:3", ["steps=20", "commit=1", "gate=10"], np=3, min_np=1, max_np=3, options=QUIET)
        job.wait("gate", step=10)
        driver, mark = job.driver(), job.mark()
        stop(driver)
        files = [os.path.join(self.journal, name) for name in os.listdir(self.journal)]
        self.assertEqual(len(files), 1)
        harm(files[0])
        os.kill(driver, signal.SIGKILL)
        self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 20, 3)

    def test_D3_the_journal_is_cut(self):
        self.with_a_journal_that_is(lambda path: os.truncate(path, os.path.getsize(path) - 3))

    def test_D3_the_journal_is_empty(self):
        self.with_a_journal_that_is(lambda path: os.truncate(path, 0))

    def test_D3_the_journal_is_gone(self):
        self.with_a_journal_that_is(os.unlink)

    def test_D3_the_journal_is_damaged(self):
        def harm(path):
            with open(path, "r+b") as file:
                for at in range(20, os.path.getsize(path), 50):
                    file.seek(at)
                    file.write(b"?")
        self.with_a_journal_that_is(harm)

    def test_D3_the_journal_is_of_another_job(self):
        first = Job(self, "a:2", ["steps=20", "commit=1", "gate=7"], np=2, min_np=2, max_np=2, sink=True,
                    options={"driver_timeout": 0.3, "stop_grace": 1})
        first.wait("gate", step=7)
        driver = first.driver()
        first.process.kill()
        self.assertTrue(wait_for_exit(driver, 20))
        second = Job(self, "a:2", ["steps=5"], np=2, min_np=2, max_np=2, directory=self.journal)
        second.wait("hvdrun", text=containing("which has not ended"))
        self.assertEqual(second.process.wait(20), 75)
        self.assertEqual(second.find("start"), [])

    @unittest.skipIf(AGENTS, "the driver's host has mounts of its own")
    def test_D3_the_disk_is_full(self):
        directory = tempfile.mkdtemp(prefix="hvd-journal-")
        self.addCleanup(os.rmdir, directory)
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "hvd-full", directory]) != 0:
            self.skipTest("no file system of a few bytes can be mounted here")
        self.addCleanup(subprocess.call, ["umount", directory])
        with open(os.path.join(directory, "filler"), "wb") as file:
            file.write(b"x" * 4096)
        job = Job(self, "a:3", ["steps=20", "commit=1", "gate=10"], np=3, min_np=1, max_np=3, options=QUIET,
                  directory=directory)
        job.wait("hvdrun", text=containing("can't be written"))
        job.wait("gate", step=10)
        _, mark = job.kill_driver()
        self.taken_over(job, mark)
        job.finish(0)
        self.nothing_happened(job, 20, 3)

    def test_D1_signals_reach_the_driver_that_is_there(self):
        for number, deaths in ((signal.SIGTERM, 0), (signal.SIGINT, 1), (signal.SIGTERM, 2)):
            with self.subTest(signal=number, deaths=deaths):
                job = Job(self, "a:2", ["steps=20", "commit=5", "gate=7"], np=2, min_np=2, max_np=2)
                job.wait("gate", step=7)
                for _ in range(deaths):
                    _, mark = job.kill_driver()
                    self.taken_over(job, mark)
                job.process.send_signal(number)
                job.wait("hvdrun", text=containing("stopped by " + signal.Signals(number).name))
                self.assertEqual(job.process.wait(60), 128 + number)

    def test_a_driver_without_a_journal_is_the_job(self):
        job = AnyJob(self, "a:2", ["steps=20", "commit=5", "gate=7"], np=2, min_np=2, max_np=2, sink=True,
                     flags=("--journal", "off"), options={"stop_grace": 1})
        job.wait("gate", step=7)
        job.process.kill()
        job.wait("event_driver_lost", count=2)
        job.open("step.7")
        for worker in job.find("train"):
            self.assertEqual(job.wait("end", pid=worker["pid"])["status"], "HVD_DRIVER_LOST")


if __name__ == "__main__":
    main()
