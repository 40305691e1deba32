"""What is built is hardened against mistakes in it: hardening_test.py FILE..."""
import subprocess
import sys
import unittest

FILES = sys.argv[1:]
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

    def test_functions_of_the_c_library_are_the_checked_ones(self):
        """All are compiled with the same flags. A module may have no call left that only a run can check."""
        for file in self.each():
            if "/hvd/1/" not in file:
                self.assertRegex(tool("nm", "-D", "--undefined-only", file), r"__\w+_chk\b")

    def test_programs_lie_anywhere(self):
        for file in self.each():
            self.assertRegex(tool("readelf", "-h", "-W", file), r"Type:\s+DYN")


if __name__ == "__main__":
    unittest.main()
