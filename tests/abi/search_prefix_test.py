"""Where a library looks for modules: below its prefix if it is installed there, and nowhere else than beside
itself if it is shipped in a wheel or built by a crate: search_prefix_test.py CMAKE CC CXX"""
import importlib.util
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE, CC, CXX = sys.argv[1:4]
PREFIX = "/a/prefix/of/nobody"
OBJECTS = ["src/CMakeFiles/hvd_cold.dir/base/modules.cc.o", "src/CMakeFiles/hvd_cold.dir/launch/guard.cc.o"]
OPTION = "-DHVD_SEARCH_PREFIX=OFF"


def wheel():
    """The module wheel.py."""
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "bindings/python/wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def objects_that_name_the_prefix(options):
    """Of those that a library so configured is made of and that look for something."""
    with tempfile.TemporaryDirectory() as tree:
        for command in ([CMAKE, "-S", ROOT, "-B", tree, "-G", "Ninja", f"-DCMAKE_C_COMPILER={CC}",
                         f"-DCMAKE_CXX_COMPILER={CXX}", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON",
                         f"-DCMAKE_INSTALL_PREFIX={PREFIX}", *options],
                        [CMAKE, "--build", tree, "--target", *OBJECTS]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise AssertionError(done.stdout)
        return [name for name in OBJECTS if PREFIX.encode() in (Path(tree) / name).read_bytes()]


class SearchPrefix(unittest.TestCase):
    def test_a_wheel_looks_beside_itself_alone(self):
        options = wheel().CONFIGURE
        self.assertIn(OPTION, options)
        self.assertEqual([], objects_that_name_the_prefix(options))

    def test_a_library_that_is_installed_looks_below_its_prefix(self):
        options = [option for option in wheel().CONFIGURE if option != OPTION]
        self.assertEqual(OBJECTS, objects_that_name_the_prefix(options))

    def test_all_that_is_moved_about_is_configured_so(self):
        for file in ("scripts/wheels.sh", "bindings/rust/hvd-sys/build.rs", "bindings/python/wheel.py"):
            text = (ROOT / file).read_text()
            self.assertEqual(1, len(re.findall("-DHVD_BUILD_TESTS=OFF", text)), file)
            self.assertTrue(OPTION in text, f"{file}: {OPTION}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
