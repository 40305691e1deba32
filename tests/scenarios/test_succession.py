"""Agents and workers outlive the driver; one that is started anew, stands by or follows takes over."""

import itertools
import os
import shutil
import signal
import sys
import tempfile

from by_hand import HVDRUN, ByHand
from harness import PATIENCE, Job, containing, main
from processes import stop, wait_for_exit

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_ports  # noqa: E402


class Succession(ByHand):
    def two_drivers(self, worker, follow=False, **more):
        """A job's driver and one that stands by, on addresses that agents know: beside its journal, or by its
        address."""
        journal = tempfile.mkdtemp(prefix="hvd-journal-")
        self.addCleanup(shutil.rmtree, journal, ignore_errors=True)
        self.ports = free_ports(2)
        options = {"job": "two", "heartbeat_timeout": 5 * PATIENCE, **more.pop("options", {})}
        shared = ["--journal", journal]
        flags = [[], ["--follow", "127.0.0.1:%d" %
                      self.ports[0]]] if follow else [shared, [*shared, "--standby"]]
        jobs = [
            Job(self, None, worker, script=False, sink=True, options=options,
                environment={"HVD_SECRET_FILE": self.secret}, flags=[*own, "--listen",
                                                                     "127.0.0.1:%d" % port],
                prepare=lambda job: [HVDRUN, "--driver"], **more) for port, own in zip(self.ports, flags)
        ]
        jobs[0].address = ",".join("127.0.0.1:%d" % port for port in self.ports)
        jobs[0].wait("hvdrun", text=containing("listens at"))
        jobs[1].wait("hvdrun", text=containing("standing by for the driver of term 1"))
        return jobs

    def test_D1_agents_outlive_their_driver(self):
        job = self.job(["steps=60", "commit=1", "gate=10", "gate=20"], np=3, min_np=1, max_np=3, sink=True)
        agents = self.agent(job, "a", 2), self.agent(job, "b")
        for step in (10, 20):
            job.wait("gate", step=step)
            _, mark = job.kill_driver()
            job.open("step.%d" % step)
            job.wait("hvdrun", since=mark, text=containing("taken over after .* generation 1 goes on"))
            job.wait("hvdrun", since=mark, count=2, text=containing("agent of host . is back"))
        job.finish(0)
        for agent in agents:
            self.said(agent, 0)
        self.one_generation(job, 60, 3)

    def test_D1_an_agent_that_went_without_a_driver_is_lost_with_its_workers(self):
        job = self.job(["steps=60", "commit=1", "gate=10", "pace=5"], np=3, min_np=1, max_np=3, sink=True)
        first, second = self.agent(job, "a", 2), self.agent(job, "b")
        job.wait("gate", step=10)
        worker = job.wait("train", host="b")
        stop(job.driver())
        second.kill()
        self.assertTrue(wait_for_exit(worker["pid"], 30 * PATIENCE))  # it goes with its agent
        job.kill_driver()
        job.finish(0)
        self.said(first, 0)
        job.verify(60, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    def test_D1_a_host_that_is_lost_with_the_driver_is_not_waited_for_for_long(self):
        job = self.job(["steps=60", "commit=1", "gate=10"], np=3, min_np=1, max_np=3, sink=True,
                       options={"heartbeat_timeout": 15 * PATIENCE, "agent_timeout": 600})
        first, second = self.agent(job, "a", 2), self.agent(job, "b")
        job.wait("gate", step=10)
        worker, mark = job.wait("train", host="b"), job.mark()
        stop(job.driver())  # else a new one may meet the host before it is lost
        second.kill()
        job.kill_if_alive(worker)
        job.kill_driver()
        job.open("step.10")
        job.wait("hvdrun", since=mark,
                 text=containing("did not come back to the new driver, and its peers have lost it"))
        job.finish(0)
        self.said(first, 0)
        job.verify(60, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])

    def test_D1_what_is_printed_without_a_driver_comes_later(self):
        place, job = self.printing(2000)
        agent = self.agent(job, "a", flags=["--set", "agent_spool=" + place])
        job.wait("raw", text="[a:0] begin")
        driver = job.driver()
        stop(driver)
        self.write(place + "/go")
        with open(place + "/printed") as printed:
            self.assertEqual(printed.read(), "done\n")
        os.kill(driver, signal.SIGKILL)
        self.write(place + "/go")
        job.wait("raw", text="[a:0] end", timeout=60)
        # What the first driver had read and not acknowledged may come twice: docs/driver-loss.md.
        said = [e["text"][len("[a:0] "):] for e in job.find("raw", text=containing(r"^\[a:0\] 0"))]
        self.assertEqual(sorted(set(said)), ["%01000d" % (i + 1) for i in range(2000)])
        job.process.send_signal(signal.SIGTERM)
        self.said(agent, 76)

    def test_D2_a_standby_takes_over_when_the_driver_and_its_machine_are_gone(self, follow=False):
        first, second = self.two_drivers(["steps=400", "commit=1", "pace=10", "gate=300"], follow, np=3,
                                         min_np=1, max_np=3)
        agents = self.agent(first, "a", 2), self.agent(first, "b")
        first.wait("step", step=20, count=3)
        driver = first.driver()
        first.process.kill()  # and the driver with it
        second.wait("hvdrun", text=containing("the driver of term 1 is gone: this one takes over"))
        second.wait("hvdrun", text=containing("taken over after .* generation 1 goes on with 3 workers"))
        first.open("step.300")
        second.process.wait(120 * PATIENCE)
        for agent in agents:
            self.said(agent, 0)
        self.assertEqual(second.finish(0)[:21], "hvdrun: job succeeded")
        self.assertTrue(first.find("done"))
        self.one_generation(first, 400, 3)
        self.assertFalse(os.path.exists("/proc/%d" % driver))

    def test_D2_an_older_driver_that_goes_on_finds_itself_refused(self, follow=False):
        first, second = self.two_drivers(["steps=600", "commit=1", "pace=10", "gate=500"], follow, np=2,
                                         min_np=1, max_np=2)
        agents = self.agent(first, "a"), self.agent(first, "b")
        first.wait("step", step=20, count=2)
        driver = first.driver()
        stop(driver)
        second.wait("hvdrun",
                    text=containing("the driver of term 1 is gone, or stands still: this one takes over"))
        second.wait("hvdrun", text=containing("taken over after .* generation 1 goes on with 2 workers"))
        os.kill(driver, signal.SIGCONT)
        self.assertEqual(first.process.wait(60 * PATIENCE), 76)
        last = first.wait("hvdrun", text=containing("^job failed: "))
        self.assertEqual(last["text"],
                         "job failed: another driver has taken job two over: this one, of term 1, ends")
        first.open("step.500")
        second.process.wait(120 * PATIENCE)
        for agent in agents:
            self.said(agent, 0)
        second.finish(0)
        self.one_generation(first, 600, 2)

    def test_D1_without_a_journal_agents_and_workers_tell(self):
        self.without_a_journal()

    def test_D1_without_a_journal_workers_come_before_their_agents(self):
        self.without_a_journal(agents_are_late=True)

    def without_a_journal(self, agents_are_late=False):
        address = "127.0.0.1:%d" % free_ports(1)[0]

        def driver():
            return Job(self, None, ["steps=400", "commit=1", "pace=10", "gate=300"], np=3, min_np=1, max_np=3,
                       script=False, sink=True, environment={"HVD_SECRET_FILE": self.secret},
                       options={"job": "two", "takeover": "true"},
                       flags=["--journal", "off", "--listen", address],
                       prepare=lambda job: [HVDRUN, "--driver"])
        first = driver()
        first.wait("hvdrun", text=containing("listens at"))
        agents = self.agent(first, "a", 2, address=address), self.agent(first, "b", address=address)
        first.wait("step", step=20, count=3)
        if agents_are_late:
            for agent in agents:
                stop(agent.pid)
        first.process.kill()
        first.process.wait()
        second = driver()
        second.wait("hvdrun", text=containing("taken over after .* generation 1 goes on with 3 workers"))
        if agents_are_late:
            # The last of them is back when its slot is there: else the job would do without it.
            said = [e["text"] for e in second.find("hvdrun", text=containing("hosts updated|taken over"))]
            before = itertools.takewhile(lambda text: "taken over" not in text, said)
            self.assertEqual(list(before)[-1:], ["hosts updated: a:2, b:1"])
            for agent in agents:
                agent.send_signal(signal.SIGCONT)
        first.open("step.300")
        second.process.wait(120 * PATIENCE)
        for agent in agents:
            self.said(agent, 0)
        second.finish(0)
        self.one_generation(first, 400, 3)

    def test_D2_who_follows_takes_over_when_the_driver_and_its_machine_are_gone(self):
        self.test_D2_a_standby_takes_over_when_the_driver_and_its_machine_are_gone(follow=True)

    def test_D2_an_older_driver_that_goes_on_gives_way_to_who_followed_it(self):
        self.test_D2_an_older_driver_that_goes_on_finds_itself_refused(follow=True)

    def test_D2_who_follows_goes_with_the_job(self):
        self.test_D2_who_stands_by_goes_with_the_job(follow=True)

    def test_D2_who_follows_leaves_the_job_to_another_driver_of_its_machine(self):
        first, second = self.two_drivers(["steps=200", "commit=1", "pace=10", "gate=100"], follow=True, np=2,
                                         min_np=1, max_np=2)
        agents = self.agent(first, "a"), self.agent(first, "b")
        first.wait("step", step=20, count=2)
        first.kill_driver()
        second.wait("hvdrun", text=containing("standing by for the driver of term 2"))
        first.open("step.100")
        first.finish(0)
        for agent in agents:
            self.said(agent, 0)
        second.wait("hvdrun", text=containing("the job has ended: all 2 workers are done"))
        self.assertEqual(second.process.wait(30 * PATIENCE), 0)
        self.assertFalse(second.find("hvdrun", text=containing("takes over")))
        self.one_generation(first, 200, 2)

    def test_D2_who_stands_by_goes_with_the_job(self, follow=False):
        first, second = self.two_drivers(["steps=20", "commit=1"], follow, np=1, min_np=1, max_np=1)
        agent = self.agent(first, "a")
        first.finish(0)
        self.said(agent, 0)
        second.wait("hvdrun", text=containing("the job has ended: the worker is done"))
        self.assertEqual(second.process.wait(30 * PATIENCE), 0)

    def test_D2_who_stands_by_can_be_told_to_end(self):
        first, second = self.two_drivers(["steps=20", "commit=1", "gate=5"], np=1, min_np=1, max_np=1)
        agent = self.agent(first, "a")
        first.wait("gate", step=5)
        second.process.send_signal(signal.SIGTERM)
        self.assertEqual(second.process.wait(30 * PATIENCE), 128 + signal.SIGTERM)
        first.finish(0)
        self.said(agent, 0)


if __name__ == "__main__":
    main()
