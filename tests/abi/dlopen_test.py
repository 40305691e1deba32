"""Languages without a binding load the library and find their way by the header alone, in jobs of two
workers: dlopen_test.py LIBRARY HVDRUN MODULES CC"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

LIBRARY, HVDRUN, MODULES, CC = sys.argv[1:5]
del sys.argv[1:5]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120 * PATIENCE
HAS_BACKEND = (Path(MODULES) / "libhvd_tcp.so").exists()


def run(*command, cwd=None, expected=0, **more):
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("HVD_")}, **more}
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=environment, timeout=DEADLINE_S, cwd=cwd)
    if result.returncode != expected:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}")
    return result.stdout


class Dlopen(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="hvd-dlopen-"))
        self.addCleanup(shutil.rmtree, self.work)

    def check(self, *command, line, **more):
        """Alone, and in a job of two."""
        self.assertIn(line.format(rank=0, size=1), run(*command, **more))
        if not HAS_BACKEND:
            self.skipTest("built without a backend for more than one worker")
        output = run(HVDRUN, "-np", "2", "-H", "localhost:2", "--", *command, **more)
        for rank in range(2):
            self.assertIn(line.format(rank=rank, size=2), output)

    def test_c(self):
        program = self.work / "dlopen_user"
        run(CC, "-std=gnu99", f"-I{ROOT / 'include'}", ROOT / "tests/abi/dlopen_user.c", "-o", program,
            "-ldl")
        self.assertIn("rank 0 of 1", run(program, LIBRARY))

    def test_python_ctypes(self):
        self.check(sys.executable, ROOT / "tests/abi/ctypes_user.py", LIBRARY, line="rank {rank} of {size}")

    def test_a_path_from_a_directory_that_is_left(self):
        """The driver, which is loaded later, and hvd-guard are found beside the library all the same."""
        script = self.work / "driver.py"
        script.write_text("""import ctypes, os
library = ctypes.CDLL("./" + os.path.basename(os.environ["LIBRARY"]))
os.chdir("/")
driver, options = ctypes.c_void_p(), ctypes.c_void_p()
error = ctypes.create_string_buffer(4096)
ctypes.c_size_t.from_buffer(error).value = len(error)
def must(name, *arguments):
    status = getattr(library, name)(*arguments, error)
    assert status == 0, (name, status, error.raw.rstrip(b"\\0"))
must("hvd_options_create", ctypes.byref(options))
must("hvd_options_set", options, b"hosts", b"localhost:1")
must("hvd_driver_create", options, ctypes.byref(driver))
must("hvd_driver_set_command", driver, (ctypes.c_char_p * 2)(b"true", None), None)
must("hvd_driver_start", driver)
library.hvd_driver_destroy(driver)
print("a driver has begun")
""")
        output = run(sys.executable, script, cwd=Path(LIBRARY).parent, LIBRARY=LIBRARY)
        self.assertIn("a driver has begun", output)

    def test_node(self):
        if shutil.which("node") is None or shutil.which("npm") is None:
            self.skipTest("Node is not installed")
        example = self.work / "node"
        shutil.copytree(ROOT / "examples/node", example)
        try:
            run("npm", "install", "--no-audit", "--no-fund", "--silent", cwd=example)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.skipTest(f"koffi can't be had: {str(error)[:200]}")
        self.check("node", example / "minimal.mjs", line="rank {rank} of {size}: y = 2.00x + 1.00",
                   HVD_LIBRARY=LIBRARY)

    def test_a_wrong_struct_size_is_an_error_that_names_it(self):
        # What a mistaken description of hvd_tensor leads to in a language without the header.
        user = (ROOT / "tests/abi/ctypes_user.py").read_text().replace(
            "HvdTensor(struct_size=ctypes.sizeof(HvdTensor)", "HvdTensor(struct_size=7")
        script = self.work / "wrong.py"
        script.write_text(user)
        output = run(sys.executable, script, LIBRARY, expected=1)
        self.assertIn("HVD_INVALID", output)
        self.assertIn("struct_size is 7", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
