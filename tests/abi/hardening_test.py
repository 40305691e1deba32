"""What is built is hardened against mistakes in it: hardening_test.py COMPILE_COMMANDS FILE..."""
import json
import platform
import re
import shlex
import subprocess
import sys
import unittest

COMPILE_COMMANDS = sys.argv[1]
FILES = sys.argv[2:]
del sys.argv[1:]


def tool(*arguments):
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout


class Hardening(unittest.TestCase):
    def each(self):
        for file in FILES:
            with self.subTest(file=file):
                yield file

    def test_relocations_are_done_at_once_and_locked(self):
        for file in self.each():
            self.assertIn("GNU_RELRO", tool("readelf", "-l", "-W", file))
            self.assertRegex(tool("readelf", "-d", "-W", file), r"BIND_NOW|\bNOW\b")

    def test_stacks_are_protected(self):
        for file in self.each():
            self.assertIn("__stack_chk_fail", tool("nm", "-D", "--undefined-only", file))

    def test_every_unit_is_compiled_with_checks(self):
        """A module may have no call left that only a run can check, so what was asked for is looked at."""
        with open(COMPILE_COMMANDS) as file:
            units = json.load(file)
        sources = [unit for unit in units if re.search(r"/src/\S+\.(cc|c)$", unit["file"])]
        self.assertGreater(len(sources), 100)
        for unit in sources:
            flags = shlex.split(unit["command"])

            def last(pattern):
                return ([flag for flag in flags if re.match(pattern, flag)] or [""])[-1]
            with self.subTest(file=unit["file"]):
                self.assertEqual(last(r"-f(no-)?stack-protector"), "-fstack-protector-strong")
                self.assertEqual(last(r"-[DU]_FORTIFY_SOURCE"), "-D_FORTIFY_SOURCE=2")
                self.assertRegex(last(r"-O"), r"^-O[123s]$", "_FORTIFY_SOURCE needs optimization")
                if platform.machine() == "x86_64":
                    self.assertEqual(last(r"-fcf-protection"), "-fcf-protection")

    def test_functions_of_the_c_library_are_the_checked_ones(self):
        for file in self.each():
            if "/hvd/1/" not in file:
                self.assertRegex(tool("nm", "-D", "--undefined-only", file), r"__\w+_chk\b")

    def test_programs_lie_anywhere(self):
        for file in self.each():
            self.assertRegex(tool("readelf", "-h", "-W", file), r"Type:\s+DYN")


if __name__ == "__main__":
    unittest.main()
