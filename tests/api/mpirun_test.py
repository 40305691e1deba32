"""Jobs that mpirun starts: nobody tells the workers where the others are but MPI itself."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_ports  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

WORKER, HVDRUN, COLLECTIVES, MODULES = sys.argv[1:5]
del sys.argv[1:5]
MISSING = [
    what for what, there in (("mpirun is not installed", shutil.which("mpirun")),
                             ("libhvd_mpi.so is not built", os.path.exists(MODULES + "/libhvd_mpi.so")))
    if not there
]


def environment(**more):
    foreign = ("HVD_", "OMPI_", "SLURM_", "PMI_", "PMIX_", "PRTE_", "MASTER_")
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE")
    }
    return clean | {
        "HVD_PLUGIN_PATH": MODULES, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE"
    } | more  # of Open MPI 5


@unittest.skipIf(MISSING, "; ".join(MISSING))
class Mpirun(unittest.TestCase):
    def mpirun(self, size, command, arguments=(), **variables):
        """(exit status, stdout, stderr); all that it started is gone afterwards. arguments: mpirun's own."""
        with tempfile.TemporaryDirectory(
                prefix="hvd-mpirun-") as directory:  # its sessions, out of others' way
            process = subprocess.Popen(["mpirun", *arguments, "-np", str(size)] + command,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True,
                                       env=environment(TMPDIR=directory, **variables))
            try:
                out, err = process.communicate(timeout=90 * PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                self.fail("mpirun does not end: %s %s" % (out, err))
            return process.returncode, out, err

    def check(self, size, command, **variables):
        status, out, err = self.mpirun(size, command, **variables)
        self.assertEqual(status, 0, out + err)
        total = size * (size + 1) // 2
        self.assertEqual(sorted(line.split() for line in out.splitlines()),
                         [[str(r), str(size), str(r), str(size), str(total)] for r in range(size)], err)
        return err

    def test_nothing_but_mpirun(self):
        for size in (1, 2, 4):
            with self.subTest(size=size):
                self.check(size, [WORKER])

    def test_a_mere_launcher(self):
        """examples/deploy/mpirun/train.sh, whose workers join a driver by its address: one is killed, the
        others go on."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "deploy",
                              "mpirun", "train.sh")
        port = free_ports(1)[0]
        with tempfile.TemporaryDirectory(prefix="hvd-mpirun-") as directory:
            variables = environment(TMPDIR=directory, TRAIN_AT="localhost:%d" % port, HVD_TEST_DIR=directory,
                                    HVD_TEST_FAULTS="before_allreduce:*/*/1/*/50/*=kill",
                                    PATH=os.path.dirname(HVDRUN) + ":" + os.environ["PATH"],
                                    MPIRUN_FLAGS="-x HVD_PLUGIN_PATH -x HVD_TEST_DIR -x HVD_TEST_FAULTS")
            process = subprocess.Popen([
                "sh", script, "3",
                os.path.join(os.path.dirname(HVDRUN), "scenario_worker"), "steps=100", "commit=5"
            ], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, start_new_session=True, env=variables)
            try:
                said = process.communicate(timeout=90 * PATIENCE)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self.fail("it does not end: %s" % process.communicate()[0])
            self.assertEqual(process.returncode, 0, said)
            self.assertIn("hvdrun: job succeeded: all 2 workers are done after 2 generations", said)
            self.assertEqual([name for name in os.listdir(directory) if name.startswith("train.")], [],
                             "its directory is left")

    def test_mpi_is_chosen(self):
        err = self.check(2, [WORKER])
        self.assertEqual(err.count("mpi (auto: mpi, since OMPI_COMM_WORLD_SIZE is set)"), 2, err)

    def test_collectives(self):
        for local in ("auto", "messages", "off"):
            with self.subTest(local=local):
                status, out, err = self.mpirun(3, [COLLECTIVES], HVD_LOCAL=local)
                self.assertEqual(status, 0, out + err)
                self.assertEqual(len(re.findall(r"of 3: \d+ checks, 0 failed", out)), 3, out + err)

    def test_within_a_host_memory_is_shared_unless_mpi_is_to_move_the_data(self):
        for local, way in (("auto", "through shared memory among 2 ranks of this host"),
                           ("messages",
                            "data by MPI, process %d of 2, messages by shared memory among 2 ranks")):
            with self.subTest(local=local):
                err = self.check(2, [WORKER], HVD_LOCAL=local)
                for rank in range(2):
                    self.assertIn(way % rank if "%d" in way else way, err)

    def test_another_backend(self):
        self.assertEqual(
            self.check(3, [WORKER], HVD_BACKEND="gloo").count("gloo (option backend is gloo)"), 3)

    @unittest.skipUnless(os.path.exists(MODULES + "/libhvd_mpich.so"), "libhvd_mpich.so is not built")
    def test_another_mpi_does_not_leave_each_rank_alone(self):
        status, out, err = self.mpirun(2, [WORKER], HVD_BACKEND="mpich")
        self.assertNotEqual(status, 0, out)
        self.assertIn(
            "began alone, though 2 processes were started: their launcher belongs to another module", err)

    def test_a_secret_of_rank_0_is_everybodys(self):
        self.check(2, [
            "sh", "-c", "export HVD_SECRET=secret-of-rank-$OMPI_COMM_WORLD_RANK-0123456789abcdef0123; "
            "exec " + WORKER
        ])

    def test_a_rendezvous_that_is_given_is_used(self):
        port = free_ports(1)[0]
        self.check(2, [WORKER], HVD_RENDEZVOUS="127.0.0.1:%d" % port, HVD_SECRET="s" * 40)
        status, _, err = self.mpirun(2, [WORKER], HVD_RENDEZVOUS="127.0.0.1:%d" % port)
        self.assertNotEqual(status, 0)
        self.assertIn("HVD_SECRET", err)

    def test_what_rank_0_can_not_do_everybody_is_told(self):
        status, _, err = self.mpirun(3, [WORKER], HVD_SECRET="short")
        self.assertNotEqual(status, 0)
        self.assertIn("option secret", err)
        self.assertNotIn("short", err)

    def test_a_worker_that_is_lost_ends_the_job_by_mpiruns_rules(self):
        status, _, _ = self.mpirun(
            3, ["sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 1 ] && kill -9 $$; exec " + WORKER])
        self.assertNotEqual(status, 0)

    def test_survivors_of_a_fault_tolerant_mpi_are_told_and_end_well(self):
        ulfm = ("--with-ft", "ulfm")
        if self.mpirun(1, ["true"], ulfm)[0] != 0:
            self.skipTest("this mpirun has no ULFM")
        for local in ("auto", "off"):  # with "off" the op that is under way is a blocking call of MPI
            for victim in (1, 0):
                with self.subTest(local=local, victim=victim):
                    _, out, err = self.mpirun(3, [WORKER, "lost=%d" % victim], ulfm, HVD_LOCAL=local)
                    ends = sorted(re.findall(r"^(\d): (\w+): (.*)$", out, re.M))
                    self.assertEqual([end[0] for end in ends], [str(r) for r in range(3) if r != victim],
                                     out + err)
                    lost = {"HVD_PEER_LOST"} if victim else {"HVD_PEER_LOST", "HVD_DRIVER_LOST"
                                                             }  # rank 0 has it
                    self.assertLessEqual({end[1] for end in ends}, lost, out)
                    self.assertTrue(victim == 0 or any("rank %d" % victim in end[2] for end in ends),
                                    "nobody blames the rank that was lost: " + out)

    def test_hvdrun_under_mpirun_is_a_job_of_its_own(self):
        for backend in ("gloo", "mpi"):
            with self.subTest(backend=backend):
                status, out, err = self.mpirun(1, [HVDRUN, "-np", "2", "--backend", backend, WORKER])
                self.assertEqual(status, 0, out + err)
                self.assertIn("1 2 1 2 3", out)


if __name__ == "__main__":
    unittest.main()
