"""Each public header compiles by itself as strict C99 and as C++: header_test.py CC CXX"""
import subprocess
import sys
import unittest

from headers import INCLUDE

CC, CXX = sys.argv[1:3]
del sys.argv[1:3]
WARNINGS = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-Wundef", "-Wshadow"]


class Headers(unittest.TestCase):
    def compile(self, command, header):
        # Twice: the guard holds.
        source = f'#include "hvd/{header}"\n#include "hvd/{header}"\nint main(void);\nint main(void) {{ return 0; }}\n'
        result = subprocess.run([*command, *WARNINGS, f"-I{INCLUDE.parent}", "-fsyntax-only", "-"],
                                input=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, result.returncode, f"{header}: {' '.join(command)}\n{result.stdout}")

    def test_c(self):
        for header in ("hvd.h", "async.h", "connect.h", "direct.h", "sampler.h", "shards.h", "driver.h",
                       "backend.h"):
            for standard in ("c99", "c11"):
                self.compile([CC, "-x", "c", f"-std={standard}", "-Wstrict-prototypes"], header)

    def test_cxx(self):
        for header in ("hvd.h", "async.h", "connect.h", "direct.h", "sampler.h", "shards.h", "driver.h",
                       "backend.h"):
            for standard in ("c++11", "c++20"):
                self.compile([CXX, "-x", "c++", f"-std={standard}"], header)


if __name__ == "__main__":
    unittest.main(verbosity=2)
