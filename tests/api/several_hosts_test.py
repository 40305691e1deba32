"""Jobs that an MPI's launcher starts on two hosts: several_hosts_test.py WORKER MODULES SLOW_BEGIN

The hosts share neither network, names nor memory (../network.py). Nobody tells the workers of rank 0's
address but MPI.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import slurm  # noqa: E402
from network import Network  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

WORKER, MODULES, SLOW_BEGIN = sys.argv[1:4]
del sys.argv[1:4]
NAMES = ("one", "two")


def environment():
    foreign = ("HVD_", "OMPI_", "SLURM_", "SBATCH_", "PMI_", "PMIX_", "MASTER_", "MPIEXEC_", "HYDRA_")
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE")
    }
    return clean | {"HVD_PLUGIN_PATH": MODULES, "HVD_LOCAL": "off",
                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class SeveralHosts(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="hvd-hosts-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.network = Network(self.addCleanup, self.directory, NAMES)

    def need(self, module, program):
        if not os.path.exists("%s/libhvd_%s.so" % (MODULES, module)):
            self.skipTest("libhvd_%s.so is not built" % module)
        if not shutil.which(program):
            self.skipTest("%s is not installed" % program)

    def run_there(self, command):
        """On the first host, with an environment of its own."""
        process = subprocess.Popen(
            self.network.enter("one") + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment())
        try:
            out, err = process.communicate(timeout=90 * PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self.fail("%s does not end: %s %s" % (command, out, err))
        return process.returncode, out, err

    def check(self, status, out, err, backend):
        """Four ranks, two on each host, in whatever order the launcher likes."""
        self.assertEqual(status, 0, out + err)
        rows = sorted(line.split() for line in out.splitlines())
        self.assertEqual([row[:2] + row[3:] for row in rows], [[str(r), "4", "2", "10"] for r in range(4)],
                         out + err)
        self.assertEqual(sorted(row[2] for row in rows), ["0", "0", "1", "1"], out + err)
        self.assertEqual(err.count(backend), 4, err)

    def test_mpirun(self):
        self.need("mpi", "mpirun")
        command = [
            "mpirun", "--mca", "plm_rsh_agent",
            self.network.remote_shell(), "--oversubscribe", "-H", "one:2,two:2", "-np", "4", "-x",
            "HVD_PLUGIN_PATH", "-x", "HVD_LOCAL"
        ]
        self.check(*self.run_there(command + [WORKER]), "mpi (auto: mpi, since OMPI_COMM_WORLD_SIZE is set)")
        self.check(*self.run_there(command + ["-x", "HVD_BACKEND=gloo", WORKER]),
                   "gloo (option backend is gloo)")
        status, out, err = self.run_there(command + [WORKER, "lost=3"])
        self.assertNotEqual(status, 0, out + err)

    def test_mpiexec_of_mpich(self):
        self.need("mpich", "mpiexec.mpich")
        command = [
            "mpiexec.mpich", "-launcher", "ssh", "-launcher-exec",
            self.network.remote_shell(), "-hosts", "one:2,two:2", "-n", "4"
        ]
        self.check(*self.run_there(command + [WORKER]), "mpich (auto: mpich, since PMI_SIZE is set)")
        self.check(*self.run_there(command + ["-genv", "HVD_BACKEND", "gloo", WORKER]),
                   "gloo (option backend is gloo)")

    def test_srun(self):
        if slurm.missing():
            self.skipTest(slurm.missing())
        controller = slurm.Slurm(environment(), self.network)
        self.addCleanup(lambda: self.assertEqual(controller.close(), [], "tasks were left behind"))
        for mpi, module, variable in (("pmix", "mpi", "PMIX_RANK"), ("pmi2", "mpich", "PMI_SIZE")):
            with self.subTest(mpi=mpi):
                self.need(module, "srun")
                command = ["srun", "--mpi=" + mpi, "-N", "2", "-n", "4", "--ntasks-per-node=2"]
                self.check(*controller.run(command + [WORKER]),
                           "%s (auto: %s, since %s is set)" % (module, module, variable))
                self.check(*controller.run(command + [WORKER], HVD_BACKEND="gloo"),
                           "gloo (option backend is gloo)")

    def test_a_rank_that_is_slow_to_begin_is_waited_for(self):
        """Ranks leave MPI_Init before it has: the first message to it would end it."""
        if slurm.missing():
            self.skipTest(slurm.missing())
        self.need("mpi", "srun")
        controller = slurm.Slurm(environment(), self.network)
        self.addCleanup(lambda: self.assertEqual(controller.close(), [], "tasks were left behind"))
        command = ["srun", "--mpi=pmix", "-N", "2", "-n", "4", "--ntasks-per-node=2", WORKER]
        for backend in ("mpi", "gloo"):
            with self.subTest(backend=backend):
                self.check(*controller.run(command, HVD_BACKEND=backend, LD_PRELOAD=SLOW_BEGIN),
                           "(option backend is %s)" % backend)


if __name__ == "__main__":
    unittest.main(verbosity=2)
