"""Under a launcher libhvd leaves the process as a program that uses MPI itself would: footprint_test.py MPI
BARE FOOTPRINT HVDRUN MODULES LAUNCHER... In an elastic job it does not, which shows that the programs would
see it."""
import os
import subprocess
import sys
import tempfile
import unittest

MPI, BARE, FOOTPRINT, HVDRUN, MODULES, *LAUNCHER = sys.argv[1:]
del sys.argv[1:]
FOREIGN = ("HVD_", "OMPI_", "SLURM_", "PMI_", "PMIX_", "PRTE_", "MASTER_", "MPIR_", "FI_", "UCX_")


def run(command, **variables):
    """Lines of the first process that has said all, and the exit status."""
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in ("RANK", "WORLD_SIZE")
    }
    clean.update(
        {"HVD_PLUGIN_PATH": MODULES, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        **variables)
    with tempfile.TemporaryDirectory(prefix="hvd-footprint-") as directory:
        outputs = os.path.join(directory, "lines.")
        script = 'exec "$0" > "$1$$"'
        process = subprocess.run([*command[:-1], "sh", "-c", script, command[-1], outputs],
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
                                 env=clean | {"TMPDIR": directory})
        said = []
        for name in sorted(os.listdir(directory)):
            if name.startswith("lines."):
                with open(os.path.join(directory, name)) as file:
                    said.append(file.read().splitlines())
    return said, process.returncode, process.stdout + process.stderr


class Footprint(unittest.TestCase):
    def lines(self, command, **variables):
        said, status, text = run(command, **variables)
        self.assertEqual((status, len(said)), (0, 2), text)
        for lines in said:
            self.assertEqual(lines[-1:], ["end"], text)
        return [set(lines) for lines in said]

    def test_a_fixed_job_leaves_what_mpi_alone_would(self):
        bare, ours = self.lines([*LAUNCHER, BARE]), self.lines([*LAUNCHER, FOOTPRINT], HVD_BACKEND=MPI)
        for lines in bare + ours:
            self.assertEqual(bare[0], lines)
        self.assertFalse([line for line in ours[0] if line.startswith(("call ", "patched "))])

    def test_an_elastic_job_would_be_seen(self):
        module = "libhvd_%s_elastic.so" % MPI
        if not os.path.exists(os.path.join(MODULES, module)) or MPI != "mpi":
            self.skipTest("no %s that can be used" % module)
        for lines in self.lines([
                HVDRUN, "-np", "2", "--backend", MPI, "--set", "restart=false", "--set", "local=off", "--",
                FOOTPRINT
        ]):
            self.assertIn("env+ OMPI_MCA_pml", lines)
            self.assertTrue(
                [line for line in lines if line.startswith("patched ") and line.endswith(" writev")], lines)


if __name__ == "__main__":
    unittest.main()
