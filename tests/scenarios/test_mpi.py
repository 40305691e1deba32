"""What only MPI has: the server through which processes meet, and files that Open MPI leaves."""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from harness import BACKEND, BIN, Job, ScenarioTest, containing, main
from processes import wait_for_exit

NO_RESTART = {"restart": "false"}
BUILD = subprocess.run([os.path.join(BIN, "hvdrun"), "--check-build"], stdout=subprocess.PIPE,
                       text=True).stdout
OLD = re.search(r"Open MPI [1-4]\.", BUILD)
SERVER = "ompi-server" if OLD else "hvd-pmix-server"
PACKAGE = "openmpi-bin" if OLD else "libpmix-dev"
SHARED = "OMPI_MCA_btl_vader_backing_directory" if OLD else "OMPI_MCA_btl_sm_backing_directory"
SESSIONS = "OMPI_MCA_orte_tmpdir_base"


def variable(pid, name):
    with open("/proc/%d/environ" % pid, "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry.startswith(name.encode() + b"="):
                return entry.split(b"=", 1)[1].decode()
    return None


def program(pid):
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return ""


def children(pid):
    found = []
    for thread in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, thread)) as file:
            found += [int(child) for child in file.read().split()]
    return found


def named(job, name):
    """Processes of the job by the name of their program."""
    return [pid for pid in job.leftovers() if program(pid) == name]


@unittest.skipUnless(BACKEND == "mpi", "for backend mpi")
class Mpi(ScenarioTest):
    def _places(self, job):
        pid = job.wait("train")["pid"]
        places = [variable(pid, SESSIONS), variable(pid, SHARED)]
        for place in places:
            self.assertTrue(os.path.isdir(place), place)
        self.assertTrue(os.listdir(places[0]), "Open MPI has put nothing into its session directory")
        return places

    def _foreign(self, job):
        """What others' ranks may have left where Open MPI puts such things when nobody tells it otherwise."""
        descriptor, segment = tempfile.mkstemp(prefix="vader_segment.", dir="/dev/shm")
        os.close(descriptor)
        self.addCleanup(os.unlink, segment)
        session = tempfile.mkdtemp(prefix="ompi.", dir=job.directory)
        return [segment, session]

    def test_what_killed_workers_leave_goes_with_the_job_and_nothing_else(self):
        job = Job(self, "a:3", ["steps=12", "commit=4", "gate=2"], np=3, min_np=1, max_np=3,
                  options=NO_RESTART,
                  faults="before_allreduce:*/1/*/*/6/*=kill,before_allreduce:*/2/*/*/6/*=kill")
        job.wait("gate", step=2)
        places = self._places(job)
        foreign = self._foreign(job)
        with open(places[1] + "/vader_segment.left", "w"):
            pass
        job.finish(0)
        job.verify(12, workers=1)
        self.assertEqual([p for p in places if os.path.exists(p)], [])
        self.assertEqual([f for f in foreign if not os.path.exists(f)], [])
        self.assertEqual(named(job, SERVER), [])

    def test_a_killed_driver_leaves_nothing(self):
        job = Job(self, "a:2", ["steps=20", "commit=5", "gate=7"], np=2, min_np=2, max_np=2, sink=True,
                  options={"stop_grace": 3})
        job.wait("gate", step=7)
        places = self._places(job)
        foreign = self._foreign(job)
        servers = named(job, SERVER)
        self.assertEqual(len(servers), 1)
        guards = [pid for pid in children(job.driver()) if program(pid) == "hvd-guard"]
        self.assertEqual(len(guards), 1)
        job.process.kill()
        job.open("step.7")
        self.assertTrue(wait_for_exit(servers[0], 20), SERVER + " lives on")
        self.assertTrue(wait_for_exit(guards[0], 20), "the guard does not end")
        self.assertEqual([p for p in places if os.path.exists(p)], [])
        self.assertEqual([f for f in foreign if not os.path.exists(f)], [])
        self.assertEqual(named(job, "orted"), [])

    def test_without_its_server_the_job_goes_on_with_the_members_it_has(self):
        job = Job(self, "a:3", ["steps=20", "commit=1", "gate=5", "gate=10"], np=3, min_np=2, max_np=3)
        job.wait("gate", step=5)
        os.kill(named(job, SERVER)[0], signal.SIGKILL)
        job.wait("hvdrun", text=containing(SERVER + r".*killed by signal 9.*goes on with the workers"))
        job.open("step.5")
        job.wait("gate", step=10)
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.open("step.10")
        job.finish(0)
        job.verify(20, workers=2)
        self.assertEqual(len(job.find("start")), 3, "nobody could join: nobody is started")

    def test_MPI_moves_no_environment_under_its_readers(self):
        """MPI begins in a thread of its own: a getenv of another crashed while setenv moved the table."""
        job = Job(self, "a:3", ["steps=5", "commit=5"], np=3, options=NO_RESTART,
                  wrapper=["env", "LD_PRELOAD=" + os.environ["HVD_TEST_MOVED_ENVIRONMENT"]])
        job.finish(0)
        job.verify(5, workers=3)
        moved = [e["text"] for e in job.find("raw") if "the table was moved" in e["text"]]
        self.assertEqual(moved, [])

    def test_an_absent_server_is_said(self):
        job = Job(self, "a:2", ["steps=5"], np=2, environment={"HVD_OMPI_SERVER": "/nonesuch/server"})
        job.finish(1, sentence=PACKAGE)
        self.assertEqual(job.find("start"), [])


if __name__ == "__main__":
    main()
