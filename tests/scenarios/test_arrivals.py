"""Workers that no driver started, let in by its address and the job's secret (A1 to A4)."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import BIN, PATIENCE, WORKER_ENVIRONMENT, main
from processes import stop

SECRET = "a secret of more than 32 characters, for tests"


class Lines:
    """What a process prints, line by line, to be waited for."""

    def __init__(self, test, command, environment):
        self.test, self.lines, self.changed, self.over = test, [], threading.Condition(), False
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        test.addCleanup(self.close)

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait(self, pattern, timeout=30):
        deadline = time.monotonic() + timeout * PATIENCE
        with self.changed:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                left = deadline - time.monotonic()
                if self.over or left <= 0:
                    break
                self.changed.wait(left)
        self.test.fail("no line like %r in:\n%s" % (pattern, "\n".join(self.lines)))

    def finish(self, timeout=60):
        status = self.process.wait(timeout * PATIENCE)
        self.thread.join(10 * PATIENCE)
        return status

    def events(self, kind):
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [event for event in found if event["ev"] == kind]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.thread.join(10 * PATIENCE)
        self.process.stdout.close()


class Arrivals(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.secret = os.path.join(self.directory, "secret")
        with open(self.secret, "w") as file:
            file.write(SECRET + "\n")
        os.chmod(self.secret, 0o600)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("HVD_") or name == "HVD_PLUGIN_PATH"}

    def driver(self, *flags, listen="127.0.0.1:0"):
        address = os.path.join(self.directory, "address")
        driver = Lines(self, [
            os.path.join(BIN, "hvdrun"), "--driver", "--verbose", "--listen", listen, "--secret-file",
            self.secret, "--address-file", address, "--set", "heartbeat_interval=0.2", "--set",
            "heartbeat_timeout=2", "--set", "join_settle=2", *flags
        ], self.environment)
        self.address = re.search(r"listens at (\S+?),", driver.wait("listens at")).group(1)
        return driver

    def worker(self, *arguments, **environment):
        return Lines(
            self, [os.path.join(BIN, "scenario_worker"), *arguments], {
                **self.environment, **WORKER_ENVIRONMENT, "HVD_DRIVER": self.address,
                "HVD_SECRET_FILE": self.secret, **environment
            })

    def test_A1_workers_come_by_themselves_and_a_third_one_waits_for_a_place(self):
        driver = self.driver("-np", "2", "--max-np", "2", "--min-np", "1")
        steps = ["steps=2000000000", "commit=1", "pace=1", "log=3"]
        first, second = (self.worker(*steps, HVD_HOST=host) for host in ("x", "y"))
        for worker in (first, second):
            worker.wait('"ev":"train"')
        third = self.worker(*steps, HVD_HOST="z")
        third.wait("waits for a place")
        second.process.send_signal(signal.SIGKILL)
        third.wait('"ev":"train".*"size":2')
        driver.process.send_signal(signal.SIGTERM)
        self.assertEqual(driver.finish(), 128 + signal.SIGTERM)
        for worker in (first, third):
            self.assertNotEqual(worker.finish(), 0)  # the job was stopped

    def test_A2_a_job_of_such_workers_alone_ends_well_by_any_of_several_addresses(self):
        driver = self.driver("-np", "3")
        self.address = "127.0.0.1:9," + self.address
        workers = [self.worker("steps=30", "commit=1", HVD_HOST="h%d" % i) for i in range(3)]
        self.assertEqual([worker.finish() for worker in workers], [0, 0, 0])
        self.assertEqual(driver.finish(), 0)
        done = [worker.events("done")[0] for worker in workers]
        self.assertEqual({event["step"] for event in done}, {30})
        self.assertEqual(len({event["sum"] for event in done}), 1)

    def test_A3_who_may_not_come_in_is_told_why(self):
        self.driver("-np", "1")
        for name, said, change in (("wrong", "refused the job's secret", {}), ("open", "others can read", {}),
                                   ("job", "this is job", {"HVD_JOB": "another"})):
            path = os.path.join(self.directory, name)
            with open(path, "w") as file:
                file.write(SECRET + ("x" if name == "wrong" else "") + "\n")
            os.chmod(path, 0o644 if name == "open" else 0o600)
            worker = self.worker("steps=5", HVD_CONNECT_TIMEOUT="5", HVD_SECRET_FILE=path, **change)
            self.assertNotEqual(worker.finish(), 0)
            worker.wait(said)

    def test_A4_twice_the_same_place_the_older_one_proves_that_it_lives(self):
        driver = self.driver("-np", "2", "--min-np", "1", "--max-np", "2")
        steps = ["steps=2000000000", "commit=1", "pace=1"]
        place = {"HVD_HOST": "x", "HVD_SLOT": "0"}
        first, other = self.worker(*steps, **place), self.worker(*steps, HVD_HOST="y")
        first.wait('"ev":"train"')
        second = self.worker(*steps, **place)
        self.assertNotEqual(second.finish(), 0)
        second.wait("slot 0 of host x has worker [12], which lives")
        other.wait('"ev":"train"')
        stop(first.process.pid)
        third = self.worker(*steps, **place)
        driver.wait("gave no sign of life")
        third.wait('"ev":"train".*"size":2')
        os.kill(first.process.pid, signal.SIGCONT)
        first.finish()
        first.wait("HVD_REMOVED.*gave no sign of life")
        other.wait('"ev":"train".*"size":2.*"gen":[3-9]')

    def test_A6_a_driver_started_anew_takes_the_job_over(self):
        """All of the first driver's machine is gone: what the journal and the workers tell is enough."""
        journal = os.path.join(self.directory, "journal")
        named = ("-np", "2", "--journal", journal, "--set", "job=handed-on")
        driver = self.driver(*named)
        workers = [self.worker("steps=400", "commit=1", "pace=10", HVD_HOST=host) for host in ("x", "y")]
        for worker in workers:
            worker.wait('"ev":"step".*"step":20[,}]')
        driver.process.kill()
        driver.finish()
        second = self.driver(*named, "--set", "takeover=true", listen=self.address)
        second.wait("taken over after .* generation 1 goes on with 2 workers")
        self.assertEqual([worker.finish() for worker in workers], [0, 0])
        self.assertEqual(second.finish(), 0)
        for worker in workers:
            steps = [event["step"] for event in worker.events("step")]
            self.assertEqual(len(steps), len(set(steps)), "a step was repeated")
            self.assertEqual(worker.events("done")[0]["step"], 400)

    def test_A6_without_a_journal_the_workers_tell(self):
        named = ("-np", "2", "--journal", "off", "--set", "job=handed-on", "--set", "takeover=true")
        driver = self.driver(*named)
        workers = [self.worker("steps=1000", "commit=1", "pace=10", HVD_HOST=host) for host in ("x", "y")]
        for worker in workers:
            worker.wait('"ev":"step".*"step":20[,}]')
        driver.process.kill()
        driver.finish()
        second = self.driver(*named, listen=self.address)
        second.wait("taken over after .* generation 1 goes on with 2 workers")
        self.assertEqual([worker.finish() for worker in workers], [0, 0])
        self.assertEqual(second.finish(), 0)
        for worker in workers:
            steps = [event["step"] for event in worker.events("step")]
            self.assertEqual(len(steps), len(set(steps)), "a step was repeated")

    def test_A7_names_are_looked_up_anew_at_each_try(self):
        """First nobody is where the name leads to; then a driver; then another, elsewhere, which takes the
        job over."""
        table = os.path.join(self.directory, "hosts")

        def leads_to(address):
            with open(table, "w") as file:  # the same file: it is mounted
                file.write("127.0.0.1 localhost\n%s the-driver\n" % address)

        leads_to("127.0.0.9")
        private = [
            "unshare", "--mount", "--propagation", "private", "sh", "-c",
            'mount --bind "$0" /etc/hosts && exec "$@"', table
        ]
        look = subprocess.run([*private, "getent", "hosts", "the-driver"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if "127.0.0.9" not in look.stdout:
            self.skipTest("names of this test's own need root and namespaces: %s" % look.stdout)
        journal = os.path.join(self.directory, "journal")
        named = ("-np", "2", "--journal", journal, "--set", "job=moved")
        driver = self.driver(*named)
        port = int(self.address.rsplit(":", 1)[1])
        nobody = socket.socket()
        self.addCleanup(nobody.close)
        nobody.bind(("127.0.0.9", port))
        nobody.listen()
        nobody.settimeout(30 * PATIENCE)
        workers = [
            Lines(
                self, [
                    *private,
                    os.path.join(BIN, "scenario_worker"),
                    "steps=%d" % (300 * PATIENCE), "commit=1", "pace=10"
                ], {
                    **self.environment, **WORKER_ENVIRONMENT, "HVD_DRIVER": "the-driver:%d" % port,
                    "HVD_SECRET_FILE": self.secret, "HVD_HOST": host
                }) for host in ("x", "y")
        ]
        nobody.accept()[0].close()  # one of them has been there
        leads_to("127.0.0.1")
        for worker in workers:
            worker.wait('"ev":"step".*"step":20[,}]')
        driver.process.kill()
        driver.finish()
        leads_to("127.0.0.3")
        second = self.driver(*named, "--set", "takeover=true", listen="127.0.0.3:%d" % port)
        second.wait("taken over after .* goes on with 2 workers")
        self.assertEqual([worker.finish() for worker in workers], [0, 0])
        self.assertEqual(second.finish(), 0)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_A5_mpirun_is_a_mere_launcher(self):
        """What it starts joins the job as any other worker does: whose rank is the driver's word, not
        mpirun's."""
        driver = self.driver("-np", "3")
        # Each rank has a host's name of its own; oversubscribed, as root, on a machine that may have one
        # core.
        run = Lines(self, [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", "sh", "-c",
            'HVD_HOST=m$OMPI_COMM_WORLD_RANK exec "$0" steps=30 commit=1 >"$1.$OMPI_COMM_WORLD_RANK"',
            os.path.join(BIN, "scenario_worker"),
            os.path.join(self.directory, "out")
        ], {
            **self.environment, **WORKER_ENVIRONMENT, "HVD_DRIVER": self.address,
            "HVD_SECRET_FILE": self.secret
        })
        self.assertEqual(run.finish(), 0)
        self.assertEqual(driver.finish(), 0)
        events = []
        for rank in range(3):  # mpirun mixes what they print
            with open(os.path.join(self.directory, "out.%d" % rank)) as file:
                events += [json.loads(line) for line in file if line.startswith("{")]
        done, begun = ([event for event in events if event["ev"] == kind] for kind in ("done", "train"))
        self.assertEqual(sorted(event["host"] for event in done), ["m0", "m1", "m2"])
        self.assertEqual(sorted(event["rank"] for event in begun), [0, 1, 2])
        self.assertEqual(len({event["sum"] for event in done}), 1)


if __name__ == "__main__":
    main()
