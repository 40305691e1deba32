"""Agents that come by themselves, what their workers print, and who may not come."""

import os
import signal
import socket
import subprocess
import threading

from by_hand import ByHand
from harness import BIN, PATIENCE, containing, main

WORKER = os.path.join(BIN, "scenario_worker")


class Relay:
    """Stands between an agent and its driver, and can be cut."""

    def __init__(self, test, target):
        host, port = target.rsplit(":", 1)
        self.target, self.open, self.pairs, self.lock = (host, int(port)), True, [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        test.addCleanup(self.close)

    def accept(self):
        while True:
            try:
                here = self.listener.accept()[0]
            except OSError:
                return
            with self.lock:
                if not self.open:
                    here.close()
                    continue
                there = socket.create_connection(self.target)
                self.pairs += [here, there]
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def carry(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            self.open = False
            pairs, self.pairs = self.pairs, []
        for end in pairs:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def mend(self):
        self.open = True

    def close(self):
        self.listener.close()
        self.cut()


class Agents(ByHand):
    """A driver that starts nobody, and agents of this machine."""

    def test_hosts_are_those_whose_agents_have_come(self):
        job = self.job(["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=1, max_np=4)
        first = self.agent(job, "a", 2)
        job.wait("gate", step=10)
        second = self.agent(job, "b", 1)
        job.wait("start", host="b")
        job.open("step.10")
        job.wait("gate", step=20)
        second.send_signal(signal.SIGINT)
        self.assertIn("stopped by SIGINT", self.said(second, 128 + signal.SIGINT))
        job.open("step.20")
        job.finish(0)
        job.verify(30)
        self.assertEqual(self.said(first, 0), "")

    def test_L1_SIGTERM_at_an_agent_drains_its_host(self):
        job = self.job(["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=3, min_np=2, max_np=3)
        first, second = self.agent(job, "a", 2), self.agent(job, "b", 1)
        job.wait("gate", step=10)
        second.send_signal(signal.SIGTERM)
        job.wait_interrupt(3)
        job.open("step.10")
        job.wait("gate", step=20, size=2)
        self.assertIn("SIGTERM: this host's workers leave at their next commit", self.said(second, 0))
        job.wait("hvdrun", text=containing("agent of host b has left"))
        job.finish(0)
        self.said(first, 0)
        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual([e["host"] for e in job.find("left")], ["b"])
        self.assertEqual(job.sizes(30), [3] * 11 + [2] * 19)
        self.assertEqual(len(job.find("start")), 3)

    def test_a_drain_that_is_cut_short(self):
        job = self.job(["steps=30", "commit=1", "log=3", "gate=10"], np=3, min_np=1, max_np=3)
        agents = self.agent(job, "a"), self.agent(job, "b",
                                                  flags=["--set", "leave_timeout=0.3"]), self.agent(job, "c")
        job.wait("gate", step=10)
        agents[1].send_signal(signal.SIGTERM)  # nobody comes to a commit while the gate is closed
        self.assertIn("1 workers had not left in time: its agent got SIGTERM", self.said(agents[1], 143))
        agents[2].send_signal(signal.SIGTERM)
        job.wait("hvdrun", text=containing("host c is drained: 1 worker leaves within 30 s"))
        agents[2].send_signal(signal.SIGTERM)
        self.assertIn("stopped by SIGTERM", self.said(agents[2], 143))
        job.open("step.10")
        job.finish(0)
        self.said(agents[0], 0)
        job.verify(30, workers=1)

    def test_how_a_job_ended_is_seen_at_its_agents(self):
        for status, faults, options in (
            (76, "before_allreduce:*/0/*/*/2/*=kill,before_allreduce:*/1/*/*/2/*=kill",
             {"restart": "false"}), (75, "", {"elastic_timeout": 2})):
            with self.subTest(status=status):
                job = self.job(["steps=5"], np=2, min_np=1 if faults else 2, faults=faults, options=options)
                one = self.agent(job, "a", 1 if status == 75 else 2)
                job.finish(status)
                self.said(one, status)

    def check_printed(self, job, lines):
        job.wait("raw", text="[a:0] end", timeout=60)
        said = [e["text"][len("[a:0] "):] for e in job.find("raw", text=containing(r"^\[a:0\]"))]
        self.assertEqual(said, ["begin"] + ["%01000d" % (i + 1) for i in range(lines)] + ["end"])

    def test_what_workers_print_without_a_driver_is_spooled_and_told_in_order(self):
        lines = 20000  # of a thousand characters: more than memory holds
        place, job = self.printing(lines)
        relay = Relay(self, job.address)
        agent = self.agent(job, "a", address=relay.address,
                           flags=["--verbose", "--set", "agent_spool=" + place])
        job.wait("raw", text="[a:0] begin")
        relay.cut()
        self.write(place + "/go")
        with open(place + "/printed") as printed:  # nobody waits for a driver
            self.assertEqual(printed.read(), "done\n")
        relay.mend()
        self.write(place + "/go")
        self.check_printed(job, lines)
        self.assertEqual(sorted(os.listdir(place)), ["go", "printed"])
        job.process.send_signal(signal.SIGTERM)
        self.assertIn("what workers print is kept in " + place, self.said(agent, 76))

    def test_a_full_disk_under_the_spool_holds_up_printing_and_loses_nothing(self):
        lines = 20000
        place, job = self.printing(lines)
        small = os.path.join(place, "small")
        os.mkdir(small)
        if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", small],
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("a disk that is full needs a mount namespace")
        relay = Relay(self, job.address)
        mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', small]
        agent = self.agent(job, "a", address=relay.address, flags=["--set", "agent_spool=" + small],
                           before=mounted)
        job.wait("raw", text="[a:0] begin")
        relay.cut()
        self.write(place + "/go")
        said = agent.stderr.readline()
        while "what workers print waits" not in said:
            self.assertTrue(said)
            said = agent.stderr.readline()
        self.assertRegex(said, "the spool in %s can't be written: No space left on device" % small)
        relay.mend()
        with open(place + "/printed") as printed:
            self.assertEqual(printed.read(), "done\n")
        self.write(place + "/go")
        self.check_printed(job, lines)
        job.process.send_signal(signal.SIGTERM)
        self.said(agent, 76)

    def test_who_may_not_come_is_told_why(self):
        job = self.job(["steps=10", "gate=5"], np=1)
        first = self.agent(job, "a")
        job.wait("gate", step=5)
        wrong = self.secret + ".wrong"
        with open(wrong, "w") as file:
            file.write("y" * 40)
        self.addCleanup(os.unlink, wrong)
        os.chmod(wrong, 0o644)
        self.assertIn("has mode 644: others can read", self.said(self.agent(job, "b", secret=wrong), 2))
        os.chmod(wrong, 0o600)
        self.assertIn("refused the job's secret", self.said(self.agent(job, "b", secret=wrong), 76))
        self.assertIn(", not another", self.said(self.agent(job, "b", flags=["--set", "job=another"]), 76))
        twice = self.agent(job, "a", flags=["--set", "agent_timeout=1"])
        self.assertIn("host a has another agent, which is connected", self.said(twice, 75))
        job.open("step.5")
        job.finish(0)
        self.said(first, 0)

    def test_a_command_of_its_own_wins(self):
        job = self.job(["steps=5"], np=2)
        self.agent(job, "a")
        own = self.agent(job, "b", command=["sh", "-c", 'echo "mine $OWN"; exec "$0" steps=5', WORKER],
                         flags=["-x", "HVD_TEST_DIR=" + job.directory])
        job.finish(0)
        self.assertTrue(job.find("raw", text=containing(r"\[b:0\] mine yes")))
        self.said(own, 0)

    def test_a_driver_that_is_gone(self):
        job = self.job(["steps=10", "gate=5"], np=1)
        agent = self.agent(job, "a", flags=["--set", "agent_timeout=1", "--set", "stop_grace=1"])
        worker = job.wait("gate", step=5)["pid"]
        job.process.kill()
        self.assertIn("no driver for", self.said(agent, 75))
        self.assertFalse(os.path.exists("/proc/%d" % worker))

    def test_sixty_four_agents_at_once(self):
        job = self.job(["steps=3"], np=64,
                       options={"elastic_timeout": 80 * PATIENCE, "start_timeout": 80 * PATIENCE})
        several = [self.agent(job, "h%d" % i) for i in range(64)]
        job.finish(0)
        for agent in several:
            self.said(agent, 0)
        self.assertEqual(len({e["host"] for e in job.find("done")}), 64)


if __name__ == "__main__":
    main()
