"""Jobs over several hosts that share neither network, names nor memory (network.py): a driver on the first of
them starts workers on all of them."""

import os
import signal
import subprocess
import sys
import unittest

from harness import BACKEND, BIN, Job, ScenarioTest, containing, main

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from network import Network  # noqa: E402
from test_mpi import OLD  # noqa: E402


class SeveralHosts(ScenarioTest):
    def job(self, hosts, worker, versions=(4, 6), listen="10.77.0.1", options=None, **more):
        """As harness.Job's, on the hosts `names`, with the driver on the first."""
        def prepare(job):
            self.network = Network(self.addCleanup, job.directory, ("one", "two", "three"), versions)
            return self.network.enter("one") + [os.path.join(BIN, "remote_driver"), self.network.starter()]

        return Job(self, hosts, worker, options={"listen": listen, **(options or {})}, prepare=prepare,
                   **more)

    def check_places(self, events):
        for event in events:
            self.assertTrue(self.network.inside(event["host"], event["pid"]),
                            "%s is elsewhere" % event["line"])

    def test_a_job_runs(self):
        for local in ("off", "auto"):  # whether the ranks of a host share memory
            with self.subTest(local=local):
                job = self.job("one:2,two:2,three:1", ["steps=20", "commit=5", "gate=10"], np=5,
                               environment={"HVD_LOCAL": local})
                job.wait("gate", step=10)
                self.check_places(job.find("train"))
                if BACKEND == "mpi":
                    with open("/proc/%d/environ" % job.wait("train", host="two")["pid"]) as file:
                        server = r"(OMPI_MCA_pmix_server_uri|HVD_PMIX_SERVER)=[^\0]*tcp4?://10\.77\.0\.1[:,]"
                        self.assertRegex(file.read(), server)
                job.finish(0)
                job.verify(20, workers=5)
                self.assertEqual(job.generations(), [(1, 5)])

    @unittest.skipUnless(BACKEND == "mpi", "for backend mpi")
    def test_a_daemon_that_starts_does_not_end_another_that_starts(self):
        """Each of Open MPI's daemons begins by removing its host's session directory if it is empty. Here
        somebody does nothing else, and takes a breath in between: two processors are for six workers, their
        daemons and this."""
        job = self.job("two:6", ["steps=5"], np=6, options={"restart": "false"})
        place = os.path.join(job.directory, "two", "ompi.two.%d" % os.geteuid())
        remove = "import os, time\nwhile True:\n time.sleep(1e-4)\n try: os.rmdir(%r)\n except OSError: pass" % place
        removers = [subprocess.Popen([sys.executable, "-c", remove]) for _ in range(3)]
        try:
            job.finish(0)
        finally:
            for remover in removers:
                remover.kill()
                remover.wait()
        job.verify(5, workers=6)
        self.assertEqual(job.generations(), [(1, 6)])

    def test_the_driver_has_an_ipv6_address(self):
        """Which is what the backend takes then; Open MPI finds its own way."""
        job = self.job("one:1,two:2", ["steps=10", "commit=5", "log=3"], np=3, listen="[fd77::1]")
        job.finish(0)
        job.verify(10, workers=3)
        self.assertTrue(job.find("hvdrun", text=containing(r"listens at \[fd77::1\]:\d+")))
        self.assertEqual(len(job.find("log", msg=containing(r"^backend .* tcp fd77::[12]"))), 3)

    @unittest.skipUnless(OLD or BACKEND != "mpi", "PMIx, as Open MPI 5 has it, meets over IPv4")
    def test_there_is_nothing_but_ipv6(self):
        job = self.job("one:1,two:2", ["steps=10", "commit=5"], np=3, versions=(6,), listen="::")
        job.finish(0)
        job.verify(10, workers=3)
        self.assertTrue(job.find("hvdrun", text=containing(r"listens at one:\d+")))

    def test_the_driver_is_found_by_its_hosts_name(self):
        job = self.job("one:1,two:1", ["steps=10", "commit=5"], np=2, listen="0.0.0.0")
        job.finish(0)
        job.verify(10, workers=2)
        self.assertTrue(job.find("hvdrun", text=containing(r"listens at one:\d+")))

    def test_an_interface_is_named(self):
        job = self.job("one:1,two:1", ["steps=10", "commit=5"], np=2, options={"interface": "eth0"})
        job.finish(0)
        job.verify(10, workers=2)

    def test_hvdrun_starts_commands_that_go_to_other_hosts(self):
        start = 'exec "$HVD_TEST_DIR/start" "$HVD_HOST" "$@"'

        def prepare(job):
            self.network = Network(self.addCleanup, job.directory, ("one", "two", "three"))
            self.network.starter()
            return self.network.enter("one") + [os.path.join(BIN, "hvdrun")]
        job = Job(self, "one:1,two:2,three:1", ["steps=15", "commit=5", "gate=12"], np=4, prepare=prepare,
                  options={"listen": "10.77.0.1"}, flags=["--", "sh", "-c", start, "sh"],
                  faults="before_allreduce:two/*/*/1/7/*=kill")
        job.wait("start", host="two", count=3)
        job.open("step.12")
        job.finish(0)
        job.verify(15)
        self.assertEqual({e["host"] for e in job.find("done")}, {"one", "two", "three"})

    def test_a_host_with_nothing_but_a_loopback(self):
        for listen in ("127.0.0.1", "[::1]", "localhost"):
            with self.subTest(listen=listen):
                def prepare(job):
                    network = Network(self.addCleanup, job.directory, ("one",))
                    network.leave_loopback("one")
                    return network.enter("one") + [os.path.join(BIN, "hvdrun")]

                job = Job(self, "localhost:2", ["steps=10", "commit=5"], np=2, prepare=prepare,
                          options={"listen": listen}, environment={"HVD_LOCAL": "off"})
                job.finish(0)
                job.verify(10, workers=2)
                self.assertEqual(job.generations(), [(1, 2)])

    def test_F1_a_worker_of_another_host_is_killed(self):
        job = self.job("one:1,two:2", ["steps=15", "commit=5"], np=3, min_np=2, options={"restart": "false"},
                       faults="before_allreduce:*/*/1/*/7/*=kill")
        job.finish(0)
        job.verify(15, workers=2)
        self.assertEqual(job.wait("fault")["host"], "two")
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])
        self.assertEqual(len(job.find("start")), 3)
        self.assertEqual([e["status"] for e in job.find("interrupted")], ["HVD_PEER_LOST"] * 2)

    def test_F1_an_agent_tells_of_the_end_of_its_worker(self):
        """Hosts whose processes the driver can't see. The memory takes its time to be given back; sockets and
        the exit status come only then."""
        def prepare(job):
            self.network = Network(self.addCleanup, job.directory, ("one", "two", "three"))
            own = "unshare --pid --fork --kill-child --mount-proc"
            return self.network.enter("one") + [
                os.path.join(BIN, "hvdrun"), "--agent", self.network.starter() + " {host} " + own]
        job = Job(self, "two:1,three:1", ["steps=15", "commit=5", "memory=1024"], np=2, min_np=1, script=False,
                  prepare=prepare, options={"listen": "10.77.0.1", "local_hosts": 0, "restart": "false"},
                  faults="before_allreduce:two/*/*/1/7/*=kill")
        job.finish(0)
        job.verify(15, workers=1)
        job.wait("hvdrun", text=containing(
            r"worker \d+ \(host two, slot 0, rank \d\) lost: its process has died, says the agent of host two"))
        self.assertEqual([e["status"] for e in job.find("interrupted")], ["HVD_PEER_LOST"])

    def test_a_killed_worker_is_replaced(self):
        job = self.job("one:1,two:1", ["steps=25", "commit=5", "gate=20"], np=2, min_np=1,
                       faults="before_allreduce:two/*/*/1/7/*=kill")
        job.wait("start", host="two", count=2)
        job.open("step.20")
        job.finish(0)
        job.verify(25)
        self.assertEqual(len(job.find("start", host="one")), 1)

    def test_H1_a_host_is_added_and_another_taken(self):
        job = self.job("one:1,two:1", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=2,
                       max_np=3)
        job.wait("gate", step=10)
        job.set_hosts("one:1,two:1,three:1")
        job.wait("start", host="three")
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        self.check_places(job.find("train", host="three"))
        mark = job.mark()
        job.set_hosts("one:1,three:1")
        job.wait_interrupt(3, since=mark)
        job.open("step.20")
        job.finish(0)
        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 3, 2])
        self.assertEqual({e["host"] for e in job.find("done")}, {"one", "three"})

    def vanishing(self, vanish):
        job = self.job(
            "one:1,two:2,three:1", ["steps=20", "commit=1", "gate=10"], np=4, min_np=2,
            options={"heartbeat_timeout": 2, "driver_timeout": 3, "restart": "false", "blocklist_after": 1})
        job.wait("gate", step=10)
        lost = job.find("train", host="two")
        self.assertEqual(len(lost), 2)
        vanish(lost)
        job.open("step.10")
        job.finish(0, timeout=60)
        job.verify(20, workers=2)
        self.assertEqual({e["host"] for e in job.find("done")}, {"one", "three"})
        self.assertEqual(job.generations()[-1][1], 2)
        self.assertEqual(len([e for e in job.find("start") if e["host"] != "two"]), 2,
                         "survivors were started anew")

    def test_a_host_vanishes_with_all_its_processes(self):
        def vanish(lost):
            for event in lost:
                os.kill(event["pid"], signal.SIGKILL)
        self.vanishing(vanish)

    def test_a_host_falls_silent(self):
        self.vanishing(lambda lost: self.network.cut("two"))

    def test_a_host_that_comes_back_is_fenced(self):
        job = self.job(
            "one:1,two:1,three:1", ["steps=20", "commit=1", "gate=10", "gate=15", "noterm=1"], np=3, min_np=2,
            options={
                "heartbeat_timeout": 2, "driver_timeout": 3, "restart": "false", "blocklist_after": 1,
                "stop_grace": 30
            })
        job.wait("gate", step=10)
        lost = job.wait("train", host="two")
        self.network.cut("two")
        job.open("step.10")
        job.wait("gate", step=15, size=2)
        self.network.mend("two")
        end = job.wait("end", pid=lost["pid"])
        self.assertIn(end["status"], ("HVD_REMOVED", "HVD_REFUSED", "HVD_DRIVER_LOST", "HVD_JOB_FAILED"))
        job.open("step.15")
        job.finish(0)
        job.verify(20, workers=2)
        self.assertEqual({e["host"] for e in job.find("done")}, {"one", "three"})

    def test_a_host_falls_silent_amid_collectives(self):
        job = self.job(
            "one:1,two:1,three:1", ["steps=20", "commit=1"], np=3, min_np=2, gates=["cut"],
            options={"heartbeat_timeout": 2, "driver_timeout": 3, "restart": "false",
                     "blocklist_after": 1}, faults="between_collectives:one/*/*/*/7/*=gate(cut)")
        job.wait("fault")
        self.network.cut("two")
        job.open("cut")
        job.finish(0, timeout=60)
        job.verify(20, workers=2)
        self.assertEqual({e["host"] for e in job.find("done")}, {"one", "three"})


if __name__ == "__main__":
    main()
