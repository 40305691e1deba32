#!/usr/bin/env python3
"""The reductions' loops are vectorised in what is built: vectorised_test.py OBJDUMP LIBRARY...

A build that compiles them as they stand (other options, a precompiled header) sums an element at a time:
right, and several times as slow.
"""

import re
import subprocess
import sys

WANTED = {
    "float32 sums": r"\tvaddps\s.*ymm", "float64 sums": r"\tvaddpd\s.*ymm", "int32 sums": r"\tvpaddd\s.*ymm",
    "float32 maxima": r"\tv(maxps|cmp\w*ps|blendvps)\s.*ymm"
}


def main():
    objdump, libraries = sys.argv[1], sys.argv[2:]
    failed = 0
    for library in libraries:
        code = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        for what, pattern in WANTED.items():
            if not re.search(pattern, code):
                print("%s: no instruction on 256 bits for %s" % (library, what))
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
