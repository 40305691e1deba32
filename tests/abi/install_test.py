"""What is installed works after it was moved elsewhere: install_test.py CMAKE BUILD_DIR CC"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

CMAKE, BUILD, CC = sys.argv[1:4]
del sys.argv[1:4]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "minimal.c"
DEADLINE_S = 240 * PATIENCE
# A worker that is alone, and modules found beside the library or not at all.
FOREIGN = ("HVD_", "LD_LIBRARY_PATH", "PKG_CONFIG", "OMPI_", "PMI", "SLURM_", "RANK", "WORLD_SIZE")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def run(*command, cwd=None, **more):
    environment = {**CLEAN, **more}
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=environment, timeout=DEADLINE_S, cwd=cwd)
    if result.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}")
    return result.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="hvd-install-"))
        run(CMAKE, "--install", BUILD, "--prefix", cls.work / "first")
        cls.prefix = cls.work / "moved to" / "here"  # with a space
        cls.prefix.parent.mkdir()
        (cls.work / "first").rename(cls.prefix)
        cls.libdir = next(cls.prefix.rglob("libhvd.so")).parent

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.work)

    def pkg_config(self, *arguments):
        return run("pkg-config", *arguments, "hvd", PKG_CONFIG_PATH=str(self.libdir / "pkgconfig")).strip()

    def test_pkg_config(self):
        # Spaces in a path come out escaped; the shell takes them apart again.
        flags = self.pkg_config("--cflags", "--libs")
        program = self.work / "by_pkg_config"
        run("sh", "-c", f"{CC} -std=c99 -pedantic -Wall -Wextra -Werror '{EXAMPLE}' {flags} "
                        f"-Wl,-rpath,'{self.libdir}' -o '{program}'")
        self.assertEqual("rank 0 of 1: y = 2.00x + 1.00\n", run(program))
        self.assertEqual("1", self.pkg_config("--variable=abi_version"))
        plugins = Path(self.pkg_config("--variable=plugindir").replace("\\ ", " "))
        self.assertEqual((self.libdir / "hvd" / "1").resolve(), plugins.resolve())
        self.assertTrue(plugins.is_dir())

    def test_cpp(self):
        source = self.work / "alone.cc"
        source.write_text("""#include <hvd/driver.h>
#include <hvd/hvd.h>
#include <iostream>
int main() {
  hvd_context* context = nullptr;
  hvd_error error = HVD_ERROR_INIT;
  if (hvd_init(nullptr, &context, &error) != HVD_OK) return std::cerr << error.message << std::endl, 1;
  std::cout << "rank " << hvd_rank(context) << " of " << hvd_size(context) << std::endl;
  hvd_destroy(context);
}
""")
        program = self.work / "by_cpp"
        run(
            "sh", "-c",
            f"c++ -std=c++11 -pedantic -Wall -Wextra -Werror '{source}' {self.pkg_config('--cflags', '--libs')} "
            f"-Wl,-rpath,'{self.libdir}' -o '{program}'")
        self.assertEqual("rank 0 of 1\n", run(program))

    def by_pkg_config(self, tool, directory, command, program, **more):
        if shutil.which(tool) is None:
            self.skipTest(f"{tool} is not installed")
        run(*command, cwd=ROOT / directory, PKG_CONFIG_PATH=str(self.libdir / "pkgconfig"), **more)
        self.assertIn("y = 2.00x + 1.00", run(program, LD_LIBRARY_PATH=str(self.libdir)))

    def test_rust(self):
        target = self.work / "rust"
        self.by_pkg_config("cargo", "bindings/rust",
                           ("cargo", "build", "--locked", "--offline", "--example", "minimal"),
                           target / "debug" / "examples" / "minimal", CARGO_TARGET_DIR=str(target))

    def test_go(self):
        program = self.work / "go_minimal"
        # A cache of its own: Go's does not notice that pkg-config says something else than last time.
        self.by_pkg_config("go", "bindings/go", ("go", "build", "-o", program, "./examples/minimal"), program,
                           GOFLAGS="-mod=readonly", GOPROXY="off", GOTOOLCHAIN="local",
                           GOCACHE=str(self.work / "go"))

    def test_find_package(self):
        build = self.work / "consumer"
        run(CMAKE, "-S", ROOT / "tests/abi/consumer", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCONSUMER_SOURCE={EXAMPLE}", f"-DCMAKE_C_COMPILER={CC}")
        run(CMAKE, "--build", build)
        self.assertEqual("rank 0 of 1: y = 2.00x + 1.00\n", run(build / "consumer"))

    def test_find_package_finds_no_other_abi(self):
        script = self.work / "find.cmake"
        script.write_text("cmake_minimum_required(VERSION 3.18)\n"
                          "find_package(hvd 0.1 CONFIG PATHS ${PREFIX} NO_DEFAULT_PATH)\n"
                          "message(\"${hvd_FOUND} of ${hvd_CONSIDERED_VERSIONS}\")\n")
        said = run(CMAKE, f"-DPREFIX={self.prefix}", "-P", script)
        self.assertIn("0 of " + self.pkg_config("--modversion"), said)

    def test_dlopen(self):
        program = self.work / "by_dlopen"
        run(CC, "-std=gnu99", "-Wall", "-Wextra", "-Werror", f"-I{self.prefix / 'include'}",
            ROOT / "tests/abi/dlopen_user.c", "-o", program, "-ldl")
        self.assertEqual("rank 0 of 1\n", run(program, self.libdir / "libhvd.so.1"))

    def test_without_the_driver_there_are_workers_and_an_error_that_names_it(self):
        prefix = self.work / "without driver"
        shutil.copytree(self.prefix, prefix, symlinks=True)
        libdir = next(prefix.rglob("libhvd.so")).parent
        driver = libdir / "hvd" / "1" / "hvd-driver.so"
        elsewhere = self.work / "drivers"
        elsewhere.mkdir()
        shutil.move(driver, elsewhere)
        program = self.work / "without_driver"
        run(CC, "-std=c99", f"-I{prefix / 'include'}", EXAMPLE, f"-L{libdir}", "-lhvd", f"-Wl,-rpath,{libdir}",
            "-o", program)
        self.assertEqual("rank 0 of 1: y = 2.00x + 1.00\n", run(program))
        job = (prefix / "bin" / "hvdrun", "-np", "1", "-H", "localhost:1", "--", program)

        def refused(why, **more):
            with self.assertRaises(AssertionError) as caught:
                run(*job, **more)
            self.assertIn(f"drivers and agents need hvd-driver.so", str(caught.exception))
            self.assertIn(f"{driver}: {why}", str(caught.exception))

        refused("No such file or directory")
        shutil.copy(libdir / "libhvd.so.1", driver)
        refused("it has no hvd_driver_object")
        driver.write_text("none")
        refused(f"{driver}: ")  # the dynamic linker's words
        # As with a module, a file elsewhere does.
        self.assertIn("rank 0 of 1: y = 2.00x + 1.00\n", run(*job, HVD_PLUGIN_PATH=str(elsewhere)))

    def test_module_in_cpp(self):
        """What docs/writing-a-backend.md shows, as it stands there."""
        page = (ROOT / "docs" / "writing-a-backend.md").read_text()
        source = self.work / "alone.cc"
        source.write_text(re.search(r"```cpp\n(.*?)```", page, re.S).group(1))
        run("c++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
            f"-I{self.prefix / 'include'}", source, "-o", self.work / "libhvd_alone.so")
        program = self.work / "alone_worker"
        run(CC, "-std=c99", f"-I{self.prefix / 'include'}", EXAMPLE, f"-L{self.libdir}", "-lhvd",
            f"-Wl,-rpath,{self.libdir}", "-o", program)
        output = run(self.prefix / "bin" / "hvdrun", "--verbose", "-np", "1", "-H", "localhost:1", "--",
                     program, HVD_PLUGIN_PATH=str(self.work), HVD_BACKEND="alone")
        self.assertIn("rank 0 of 1: y = 2.00x + 1.00", output)

    def test_job_of_two_workers(self):
        if not list((self.libdir / "hvd" / "1").glob("libhvd_tcp.so")):
            self.skipTest("built without a backend for more than one worker")
        program = self.work / "worker"
        run(CC, "-std=c99", f"-I{self.prefix / 'include'}", EXAMPLE, f"-L{self.libdir}", "-lhvd",
            f"-Wl,-rpath,{self.libdir}", "-o", program)
        output = run(self.prefix / "bin" / "hvdrun", "-np", "2", "-H", "localhost:2", "--", program)
        self.assertIn("rank 0 of 2: y = 2.00x + 1.00", output)
        self.assertIn("rank 1 of 2: y = 2.00x + 1.00", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
