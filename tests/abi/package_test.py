"""The packages install and remove cleanly, and the tarball works where it is unpacked: package_test.py CPACK
BUILD_DIR CC"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

CPACK, BUILD, CC = sys.argv[1:4]
del sys.argv[1:4]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "minimal.c"
DEADLINE_S = 240 * PATIENCE
CLEAN = {
    name: value for name, value in os.environ.items()
    if not name.startswith(("HVD_", "LD_LIBRARY_PATH", "PKG_CONFIG", "OMPI_", "PMI", "SLURM_", "RANK",
                            "WORLD_SIZE"))
}


def run(*command, **more):
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, timeout=DEADLINE_S, env=CLEAN, **more)
    if result.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}")
    return result.stdout


def files_below(directory):
    """Relative paths of what is no directory, apart from dpkg's own records and what ldconfig would write."""
    return {
        str(path.relative_to(directory)) for path in directory.rglob("*")
        if not path.is_dir() and not str(path.relative_to(directory)).startswith(("var/lib/dpkg", "dpkg.log"))
    }


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="hvd-package-"))
        for generator in ("DEB", "TGZ"):
            run(CPACK, "--config",
                Path(BUILD) / "CPackConfig.cmake", "-G", generator, "-B", cls.work / generator)
        cls.debs = {path.name.split("_")[0]: path for path in (cls.work / "DEB").glob("*.deb")}
        cls.tarball = next((cls.work / "TGZ").glob("*.tar.gz"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.work)

    def field(self, package, name):
        return run("dpkg-deb", "--field", self.debs[package], name).strip()

    def contents(self, package):
        lines = run("dpkg-deb", "--contents", self.debs[package]).splitlines()
        return [re.sub(r" -> .*", "", line.split(None, 5)[5]) for line in lines if not line.startswith("d")]

    def test_each_file_is_in_its_package(self):
        self.assertLessEqual({"libhvd1", "libhvd-dev", "hvd-tools"}, set(self.debs))
        every = [name for package in self.debs for name in self.contents(package)]
        self.assertEqual(sorted(set(every)), sorted(every), "a file is in two packages")
        self.assertTrue(
            any(re.fullmatch(r"\./usr/lib/.*libhvd\.so\.1", name) for name in self.contents("libhvd1")))
        for end in ("/hvd-guard", "/hvd-driver.so"):
            self.assertTrue(any(name.endswith(end) for name in self.contents("libhvd1")), end)
        self.assertEqual([
            "./usr/bin/" + name for name in ("hvd-hosts-dns", "hvd-hosts-slurm", "hvd-notice",
                                             "hvd-notice-aws", "hvd-notice-azure", "hvd-notice-gcp", "hvdrun")
        ], sorted(self.contents("hvd-tools")))
        devel = self.contents("libhvd-dev")
        for end in ("/hvd/hvd.h", "/hvd/async.h", "/hvd/connect.h", "/hvd/direct.h", "/hvd/sampler.h",
                    "/hvd/shards.h", "/hvd/driver.h", "/hvd/backend.h", "/hvd/api.json", "/hvd.pc",
                    "/hvdConfig.cmake", "/libhvd.so"):
            self.assertTrue(any(name.endswith(end) for name in devel), end)

    def test_dependencies(self):
        self.assertRegex(self.field("libhvd1", "Depends"), r"libc6 .*libssl3")
        version = self.field("libhvd1", "Version")
        for package in ("libhvd-dev", "hvd-tools"):
            self.assertIn(f"libhvd1 (= {version})", self.field(package, "Depends"))
        self.assertNotIn("mpi", self.field("libhvd1", "Depends"))
        for package in ("libhvd1-mpi", "libhvd1-mpi-elastic"):
            if package in self.debs:
                self.assertIn("libopenmpi", self.field(package, "Depends"))

    def test_they_install_and_remove_cleanly(self):
        target = self.work / "system"
        for directory in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers"):
            (target / directory).mkdir(parents=True)
        (target / "var/lib/dpkg/status").touch()
        # What they depend on, and the dynamic linker's records, are the system's, not this directory's.
        dpkg = ("dpkg", f"--root={target}", "--force-not-root", "--force-depends",
                "--force-script-chrootless", f"--log={target}/dpkg.log", "--no-triggers")
        run(*dpkg, "--install", *self.debs.values())
        installed = files_below(target)
        self.assertIn("usr/bin/hvdrun", installed)
        self.assertIn("--host-discovery-script", run(target / "usr/bin/hvdrun", "--help"))
        run(*dpkg, "--purge", *self.debs)
        self.assertEqual(set(), files_below(target))

    def test_the_tarball_works_where_it_is(self):
        place = self.work / "any where"
        place.mkdir()
        run("tar", "-xzf", self.tarball, "-C", place)
        library = next(place.rglob("libhvd.so")).parent
        prefix = next(place.rglob("hvdrun")).parent.parent
        self.assertEqual([prefix], list(place.iterdir()),
                         "the installed tree is what the tarball's one directory holds")
        program = self.work / "worker"
        run(CC, "-std=c99", f"-I{prefix / 'include'}", EXAMPLE, f"-L{library}", "-lhvd",
            f"-Wl,-rpath,{library}", "-o", program)
        if not list((library / "hvd" / "1").glob("libhvd_tcp.so")):
            self.assertIn("rank 0 of 1", run(program))
            return
        output = run(prefix / "bin" / "hvdrun", "-np", "2", "-H", "localhost:2", "--", program)
        self.assertIn("rank 1 of 2: y = 2.00x + 1.00", output)


if __name__ == "__main__":
    if shutil.which("dpkg-deb") is None:
        print("SKIPPED: no dpkg here to make and install packages with")
        sys.exit(77)
    unittest.main(verbosity=2)
