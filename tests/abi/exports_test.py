"""What libhvd.so shows to the outside is what the public headers declare, what hvd-driver.so shows to it is
one function: exports_test.py LIBRARY DRIVER"""
import re
import subprocess
import sys
import unittest

from headers import INCLUDE, public_functions

LIBRARY, DRIVER = sys.argv[1:3]
del sys.argv[1:3]
MAP = INCLUDE.parents[1] / "src" / "api" / "hvd.map"
# The C library and OpenSSL. The C++ runtime and every other library are linked in and hidden.
NEEDED = re.compile(r"lib(c|m)\.so\.6|ld-linux-.*\.so\.\d|lib(ssl|crypto)\.so\.3")
FOREIGN = re.compile(r"(GLIBC|OPENSSL)_[\w.]+")


def tool(*arguments):
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout


def dynamic_symbols(which, file=LIBRARY):
    """(name, version, type letter) of the dynamic symbols."""
    symbols = []
    for line in tool("nm", "-D", which, "--with-symbol-versions", file).splitlines():
        *_, letter, name = line.split()
        name, _, version = name.partition("@")
        symbols.append((name, version.lstrip("@"), letter))
    return symbols


class Exports(unittest.TestCase):
    maxDiff = None

    def test_exports_are_the_declared_functions(self):
        exported = {
            name: version for name, version, letter in dynamic_symbols("--defined-only") if letter != "A"
        }
        self.assertEqual(sorted(public_functions()), sorted(exported))
        self.assertEqual({"HVD_0.2"}, set(exported.values()))

    def test_version_script_names_each_function(self):
        text = re.sub(r"/\*.*?\*/", "", MAP.read_text(), flags=re.S)
        named = []
        for block in re.findall(r"global:(.*?)local:", text, flags=re.S):
            named += [name.strip() for name in block.split(";") if name.strip()]
        self.assertEqual(sorted(public_functions()), sorted(named))

    def test_the_driver_shows_its_entry(self):
        self.assertEqual(["hvd_driver_object"], [s[0] for s in dynamic_symbols("--defined-only", DRIVER)])

    def test_the_driver_is_in_its_own_object(self):
        rooms = re.compile(r"\bhvd::(driver|agent|membership|launch|status)::")
        found = [line for line in tool("nm", "-C", LIBRARY).splitlines() if rooms.search(line)]
        self.assertEqual([], found[:3], "a worker needs none of it: src/api/driver_object.h")

    def test_needs_nothing_but_c_library_and_openssl(self):
        for file in (LIBRARY, DRIVER):
            dynamic = tool("readelf", "-d", "-W", file)
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
            self.assertTrue(needed)
            self.assertEqual([], [name for name in needed if not NEEDED.fullmatch(name)])
            name = ["libhvd.so.1"] if file == LIBRARY else []
            self.assertEqual(name, re.findall(r"\(SONAME\).*\[(.*)\]", dynamic))

    def test_undefined_symbols_are_of_c_library_and_openssl(self):
        for file in (LIBRARY, DRIVER):
            strange = [(name, version) for name, version, letter in dynamic_symbols("--undefined-only", file)
                       if not FOREIGN.fullmatch(version) and letter not in "wv"]
            self.assertEqual([], strange)

    def test_no_locales(self):
        """A stream or a locale anywhere in it adds a fifth to the library: base/file.h reads files without.
        """
        found = [
            line for file in (LIBRARY, DRIVER) for line in tool("nm", "-C", file).splitlines()
            if "std::locale::locale()" in line
        ]
        self.assertEqual([], found[:3], "src includes <fstream>, <sstream>, <iostream> or <locale>")

    def test_no_file_system_library(self):
        """Its paths and iterators were 25 kB: base/file.h has what is needed of them."""
        found = [
            line for file in (LIBRARY, DRIVER) for line in tool("nm", "-C", file).splitlines()
            if "std::filesystem::" in line
        ]
        self.assertEqual([], found[:3], "src includes <filesystem>")

    def test_no_writable_and_executable_segment(self):
        for file in (LIBRARY, DRIVER):
            stack = re.search(r"GNU_STACK.*", tool("readelf", "-l", "-W", file))
            self.assertIsNotNone(stack)
            self.assertNotIn("RWE", stack.group(0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
