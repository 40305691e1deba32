"""MPICH as a backend, in jobs of fixed size that its own launcher starts: mpich_test.py COLLECTIVES WORKER
MODULES LAUNCHER"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

COLLECTIVES, WORKER, MODULES, NAME = sys.argv[1:5]
del sys.argv[1:5]
LAUNCHER = shutil.which(NAME)
MISSING = [
    what for what, there in ((NAME + " is not installed", LAUNCHER is not None),
                             ("libhvd_mpich.so is not built", os.path.exists(MODULES + "/libhvd_mpich.so")))
    if not there
]


@unittest.skipIf(MISSING, "; ".join(MISSING))
class Mpich(unittest.TestCase):
    def run_ranks(self, size, program, succeeds=True, **variables):
        foreign = ("HVD_", "OMPI_", "SLURM_", "PMI_", "PMIX_", "MASTER_")
        clean = {
            k: v for k, v in os.environ.items()
            if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE")
        }
        with tempfile.TemporaryDirectory(prefix="hvd-mpich-") as directory:
            process = subprocess.Popen([LAUNCHER, "-n", str(size), program], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       start_new_session=True, env=clean |
                                       {"HVD_PLUGIN_PATH": MODULES, "TMPDIR": directory} | variables)
            try:
                out, _ = process.communicate(timeout=120 * PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self.fail("mpiexec does not end: " + process.communicate()[0])
            self.assertEqual(process.returncode == 0, succeeds, out)
            return out

    def test_collectives(self):
        for size in (1, 2, 3):
            for local in ("off", "auto"):
                with self.subTest(size=size, local=local):
                    out = self.run_ranks(size, COLLECTIVES, HVD_LOCAL=local, HVD_BACKEND="mpich")
                    self.assertEqual(out.count(" checks, 0 failed"), size, out)

    def test_it_is_chosen_under_its_launcher(self):
        out = self.run_ranks(2, WORKER)
        self.assertEqual(out.count("mpich (auto: mpich, since PMI_SIZE is set)"), 2, out)

    @unittest.skipUnless(os.path.exists(MODULES + "/libhvd_mpi.so"), "libhvd_mpi.so is not built")
    def test_another_mpi_does_not_leave_each_rank_alone(self):
        out = self.run_ranks(2, WORKER, succeeds=False, HVD_BACKEND="mpi")
        self.assertIn(
            "began alone, though 2 processes were started: their launcher belongs to another module", out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
