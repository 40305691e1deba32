"""Jobs that srun starts: srun_test.py WORKER COLLECTIVES HVDRUN MODULES

Slurm and its MPI plug-ins are Debian's, on two nodes that share this machine (slurm.py).
"""
import os
import re
import select
import sys
import tempfile
import unittest

import slurm
from ports import free_ports

WORKER, COLLECTIVES, HVDRUN, MODULES = sys.argv[1:5]
del sys.argv[1:5]
MISSING = slurm.missing()
# How srun wires the tasks up, whose MPI that is, and by which variable they know.
FLAVOURS = {"pmix": ("mpi", "PMIX_RANK"), "pmi2": ("mpich", "PMI_SIZE")}


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)
    foreign = ("HVD_", "OMPI_", "SLURM_", "SBATCH_", "PMI_", "PMIX_", "MASTER_")
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE")
    }
    # Both nodes have this machine's name: ranks would share memory, and not ask the backend.
    Srun.slurm = slurm.Slurm(clean | {"HVD_PLUGIN_PATH": MODULES, "HVD_LOCAL": "off"})
    Srun.plugins = Srun.slurm.run(["srun", "--mpi=list"])[1].split()


def tearDownModule():
    left = Srun.slurm.close() if not MISSING else []
    assert not left, "tasks were left behind: %s" % left


class Srun(unittest.TestCase):
    slurm = None
    plugins = []

    def flavour(self, mpi):
        """(module, variable); skips where Slurm or the library lacks it."""
        module, variable = FLAVOURS[mpi]
        if mpi not in self.plugins:
            self.skipTest("Slurm has no plug-in %s" % mpi)
        if not os.path.exists("%s/libhvd_%s.so" % (MODULES, module)):
            self.skipTest("libhvd_%s.so is not built" % module)
        return module, variable

    def srun(self, mpi, size, command, nodes=1, arguments=(), **variables):
        start = ["srun", "--mpi=" + mpi, "-N", str(nodes), "-n", str(size)]
        return self.slurm.run(start + list(arguments) + command, **variables)

    def check(self, mpi, size, nodes=1, **variables):
        status, out, err = self.srun(mpi, size, [WORKER], nodes, **variables)
        self.assertEqual(status, 0, out + err)
        total = size * (size + 1) // 2
        self.assertEqual(sorted(line.split() for line in out.splitlines()),
                         [[str(r), str(size), str(r), str(size), str(total)] for r in range(size)], err)
        return err

    def test_nothing_but_srun(self):
        for mpi in FLAVOURS:
            for size, nodes in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)):
                with self.subTest(mpi=mpi, size=size, nodes=nodes):
                    module, variable = self.flavour(mpi)
                    err = self.check(mpi, size, nodes)
                    if size > 1:
                        self.assertEqual(
                            err.count("%s (auto: %s, since %s is set)" % (module, module, variable)), size,
                            err)

    def test_collectives(self):
        for mpi in FLAVOURS:
            with self.subTest(mpi=mpi):
                module, _ = self.flavour(mpi)
                status, out, err = self.srun(mpi, 3, [COLLECTIVES], 2, HVD_BACKEND=module)
                self.assertEqual(status, 0, out + err)
                self.assertEqual((out + err).count(" checks, 0 failed"), 3, out + err)

    def test_another_backend(self):
        for mpi in FLAVOURS:
            with self.subTest(mpi=mpi):
                self.flavour(mpi)
                self.assertEqual(
                    self.check(mpi, 3, 2, HVD_BACKEND="gloo").count("gloo (option backend is gloo)"), 3)

    def test_the_other_mpi_does_not_leave_each_rank_alone(self):
        self.flavour("pmix")
        self.flavour("pmi2")
        status, out, err = self.srun("pmix", 2, [WORKER], HVD_BACKEND="mpich")
        self.assertNotEqual(status, 0, out)
        self.assertEqual(
            err.count(
                "began alone, though 2 processes were started: their launcher belongs to another module"), 2,
            err)
        status, out, err = self.srun("pmi2", 2, [WORKER], HVD_BACKEND="mpi")
        self.assertNotEqual(status, 0, out)  # Open MPI says why, and ends the process

    def test_without_mpi_a_rendezvous_is_needed(self):
        status, _, err = self.srun("none", 2, [WORKER])
        self.assertNotEqual(status, 0)
        self.assertEqual(len(re.findall(r"rank . of 2 \(from Slurm\) has no driver: .*HVD_RENDEZVOUS", err)),
                         2, err)
        port = free_ports(1)[0]
        self.check("none", 4, 2, HVD_RENDEZVOUS="127.0.0.1:%d" % port, HVD_SECRET="s" * 40)

    def test_a_batch_scripts_own_process_is_alone(self):
        self.assertEqual(self.batch(WORKER, 4), "0 1 0 1 1\n")

    def test_a_step_of_a_batch_script(self):
        self.flavour("pmix")
        out = self.batch("srun --mpi=pmix -n 2 " + WORKER, 4)
        self.assertEqual(sorted(out.splitlines()), ["0 2 0 2 3", "1 2 1 2 3"])

    def test_a_lost_worker_ends_the_job_by_slurms_rules(self):
        for mpi in FLAVOURS:
            with self.subTest(mpi=mpi):
                self.flavour(mpi)
                status, out, err = self.srun(mpi, 3, [WORKER, "lost=1"], 2,
                                             arguments=["--kill-on-bad-exit=1"])
                self.assertNotEqual(status, 0, out + err)
                self.assertIn("Terminating StepId", err)
                status, out, err = self.srun(mpi, 3, [WORKER, "lost=1"], 2,
                                             arguments=["--kill-on-bad-exit=0"])
                self.assertEqual(status, 128 + 9, out + err)
                for rank in (0, 2):
                    self.assertRegex(out, r"(?m)^%d: HVD_PEER_LOST: rank " % rank, err)

    def test_hvdrun_in_an_allocation_is_a_job_of_its_own(self):
        """MPI is not misled by what Slurm says of the step or the batch script."""
        wanted = ["[0] 0 2 0 2 3", "[1] 1 2 1 2 3"]
        for backend in ("gloo", "mpi"):
            if not os.path.exists("%s/libhvd_%s.so" % (MODULES, backend)):
                continue
            command = [HVDRUN, "-np", "2", "-H", "localhost:2", "--backend", backend, WORKER]
            for mpi in ["none"] + [mpi for mpi in FLAVOURS if mpi in self.plugins]:
                with self.subTest(backend=backend, mpi=mpi):
                    status, out, err = self.srun(mpi, 1, command)
                    self.assertEqual(status, 0, out + err)
                    self.assertEqual(sorted(line for line in out.splitlines() if line[:1] == "["), wanted,
                                     out + err)
            with self.subTest(backend=backend, batch=True):
                out = self.batch(" ".join(command), 2)
                self.assertEqual(sorted(line for line in out.splitlines() if line[:1] == "["), wanted, out)

    def test_a_driver_whose_workers_srun_starts(self):
        for backend in ("gloo", "mpi"):
            if not os.path.exists("%s/libhvd_%s.so" % (MODULES, backend)):
                continue
            for mpi in ["none"] + [mpi for mpi in FLAVOURS if mpi in self.plugins]:
                with self.subTest(backend=backend, mpi=mpi):
                    start = "exec srun --mpi=%s -N 1 -n 1 -w $HVD_HOST %s" % (mpi, WORKER)
                    status, out, err = self.slurm.run([
                        HVDRUN, "--backend", backend, "--local-hosts", "-H", "one:1,two:1", "--set",
                        "restart=false", "--", "sh", "-c", start
                    ])
                    self.assertEqual(status, 0, out + err)
                    self.assertEqual(sorted(line for line in out.splitlines() if line[:1] == "["),
                                     ["[0] 0 2 0 1 3", "[1] 1 2 0 1 3"], out + err)

    def test_hosts_and_slots_are_the_allocations(self):
        """hvdrun starts an agent on each node by srun, whose standard input brings the key."""
        out = self.batch("%s --backend tcp %s" % (HVDRUN, WORKER), 4, ["-N", "2", "--ntasks-per-node=2"])
        self.assertEqual(sorted(line for line in out.splitlines() if line[:1] == "["),
                         ["[0] 0 4 0 2 10", "[1] 1 4 1 2 10", "[2] 2 4 0 2 10", "[3] 3 4 1 2 10"])

    def batch(self, script, size, arguments=()):
        """What the script prints. It says through a FIFO that it has ended: sbatch --wait asks every ten
        seconds."""
        with tempfile.TemporaryDirectory(dir=self.slurm.directory) as directory:
            path, out, err, done = (os.path.join(directory, name)
                                    for name in ("script", "out", "err", "done"))
            os.mkfifo(done)
            handle = os.open(done, os.O_RDONLY | os.O_NONBLOCK)
            try:
                with open(path, "w") as file:
                    file.write("#!/bin/sh\n%s\necho $? > %s\n" % (script, done))
                status, _, said = self.slurm.run(
                    ["sbatch", "-n", str(size), *arguments, "-o", out, "-e", err, path])
                self.assertEqual(status, 0, said)
                ended = select.select([handle], [], [], 60)[0]
                ended = os.read(handle, 100) if ended else b"it does not end"
            finally:
                os.close(handle)
            with open(out) as text, open(err) as errors:
                printed, said = text.read(), errors.read()
        self.assertEqual(ended, b"0\n", printed + said)
        return printed


if __name__ == "__main__":
    unittest.main(verbosity=2)
