"""Jobs that have no driver: workers find rank and size in their launcher's variables."""
import os
import subprocess
import sys
import unittest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_ports  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

WORKER = sys.argv.pop(1) if len(sys.argv) > 1 else ""
SECRET = "standalone-secret-0123456789abcdef"


def clean_environment():
    foreign = ("HVD_", "OMPI_", "SLURM_", "PMI_", "MASTER_")
    return {k: v for k, v in os.environ.items()
            if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE")}


def run_workers(size, variables, *arguments):
    """Starts one process a rank with variables(rank), returns [(status, stdout, stderr)]."""
    workers = []
    for rank in reversed(range(size)):  # rank 0 last: the others must wait for it to listen
        environment = clean_environment() | {k: str(v) for k, v in variables(rank).items()}
        workers.append(subprocess.Popen([WORKER, *arguments], env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True))
    results = []
    try:
        for worker in workers:
            out, err = worker.communicate(timeout=60 * PATIENCE)
            results.append((worker.returncode, out, err))
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return list(reversed(results))


class Standalone(unittest.TestCase):
    def check(self, size, variables):
        for rank, (status, out, err) in enumerate(run_workers(size, variables)):
            self.assertEqual(status, 0, err)
            self.assertEqual(out.split(), [str(rank), str(size), str(rank), str(size),
                                           str(size * (size + 1) // 2)])

    def launcher(self, rank_name, size_name, size=3, **others):
        """Only the variables of a launcher: there is no MPI behind them that could be asked."""
        port = free_ports(1)[0]
        self.check(size, lambda rank: {**others, rank_name: rank, size_name: size, "HVD_SECRET": SECRET,
                                       "HVD_BACKEND": "gloo", "HVD_RENDEZVOUS": f"127.0.0.1:{port}"})

    def test_own_variables(self):
        self.launcher("HVD_RANK", "HVD_SIZE")

    def test_open_mpi(self):
        self.launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")

    def test_slurm(self):
        self.launcher("SLURM_PROCID", "SLURM_NTASKS", SLURM_STEP_ID=0)

    def test_a_batch_script_of_slurm_runs_one_process(self):
        self.check(1, lambda rank: {"SLURM_PROCID": 0, "SLURM_NTASKS": 4})

    def test_the_innermost_launcher_counts(self):
        outer = {"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0}
        self.launcher("PMI_RANK", "PMI_SIZE", **outer)
        self.launcher("RANK", "WORLD_SIZE", **outer)
        self.launcher("RANK", "WORLD_SIZE", TORCHELASTIC_RUN_ID="x", PMI_RANK=0, PMI_SIZE=2,
                      OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)

    def test_pmi(self):
        self.launcher("PMI_RANK", "PMI_SIZE")

    def test_torchrun_with_its_master(self):
        port = free_ports(1)[0]
        self.check(2, lambda rank: {"RANK": rank, "WORLD_SIZE": 2, "HVD_SECRET": SECRET,
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})

    def test_own_variables_win(self):
        port = free_ports(1)[0]
        self.check(2, lambda rank: {"HVD_RANK": rank, "HVD_SIZE": 2, "RANK": 7, "WORLD_SIZE": 9,
                                    "HVD_SECRET": SECRET, "HVD_RENDEZVOUS": f"127.0.0.1:{port}"})

    def test_one_worker_needs_nothing(self):
        self.check(1, lambda rank: {"RANK": 0, "WORLD_SIZE": 1})
        self.check(1, lambda rank: {})

    def test_who_serves_the_others_may_be_the_first_to_leave(self):
        """Rank 0 learns of the loss like the others and goes at once: they have lost a peer all the same."""
        for backend in ("tcp", "gloo") * 3:
            port = free_ports(1)[0]
            results = run_workers(
                4, lambda rank: {
                    "HVD_RANK": rank, "HVD_SIZE": 4, "HVD_SECRET": SECRET, "HVD_BACKEND": backend,
                    "HVD_RENDEZVOUS": f"127.0.0.1:{port}"
                }, "lost=2")
            for rank in (0, 1, 3):
                self.assertRegex(results[rank][1], r"(?m)^%d: HVD_PEER_LOST: " % rank, results[rank][2])

    def test_no_rendezvous_is_said(self):
        for status, _, err in run_workers(2, lambda rank: {"HVD_RANK": rank, "HVD_SIZE": 2,
                                                           "HVD_SECRET": SECRET}):
            self.assertEqual(status, 1)
            self.assertIn("HVD_RENDEZVOUS", err)

    def test_unfit_numbers_are_named(self):
        (status, _, err), = run_workers(1, lambda rank: {"RANK": "first", "WORLD_SIZE": 2})
        self.assertEqual(status, 1)
        self.assertIn("RANK is 'first'", err)


if __name__ == "__main__":
    unittest.main()
