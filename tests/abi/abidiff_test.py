"""The public headers' ABI beside those that were recorded: abidiff_test.py CC
Additions are fine; a change of anything that a program may have been built against fails, and says what
changed."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from headers import INCLUDE, public_functions, recorded_versions

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

CC = sys.argv.pop(1)
RECORDED = recorded_versions("HVD_ABI_VERSION", "hvd.h")
HEADERS = ("hvd.h", "connect.h", "direct.h", "sampler.h", "shards.h", "driver.h")


def present(include):
    """Those that there were then."""
    return [header for header in HEADERS if (include / "hvd" / header).exists()]


def enumerators(include):
    """Names of all enumerators."""
    names = []
    for header in present(include):
        text = re.sub(r"/\*.*?\*/", "", (include / "hvd" / header).read_text(), flags=re.S)
        for body in re.findall(r"\benum\s*\w*\s*\{(.*?)\}", text, flags=re.S):
            names += re.findall(r"\b(HVD_\w+)\s*=", body)
    return names


def description(include, target, functions, constants):
    """A shared object whose variables have the types of the functions, and sizes that are the constants'
    values."""
    lines = [f"#include <hvd/{header}>" for header in present(include)]
    lines += [f"__typeof__(&{name}) type_of_{name};" for name in functions]
    # hvd_event_kind's highest bit is the largest of them; none is negative.
    lines += [f"char value_of_{name}[(unsigned long){name} + 1];" for name in constants]
    source = target.with_suffix(".c")
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(
        [CC, "-std=gnu99", "-g", "-shared", "-fPIC", f"-I{include}",
         str(source), "-o",
         str(target)], check=True, timeout=60 * PATIENCE)
    return str(target)


def compare(recorded, today, work):
    """(fine?, what abidiff says)"""
    functions, constants = public_functions(recorded / "hvd"), enumerators(recorded)
    old = description(recorded, work / "recorded.so", functions, constants)
    new = description(today, work / "today.so", functions, constants)
    result = subprocess.run(("abidiff", "--no-added-syms", old, new), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=120 * PATIENCE)
    return result.returncode == 0, result.stdout


class Abi(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="hvd-abi-"))
        self.addCleanup(shutil.rmtree, self.work)

    def changed(self, old, new):
        """A copy of today's headers in which `old` is `new`."""
        include = self.work / "changed"
        shutil.copytree(INCLUDE.parent, include)
        header = include / "hvd" / "hvd.h"
        text = header.read_text()
        self.assertIn(old, text)
        header.write_text(text.replace(old, new, 1))
        return include

    def test_nothing_recorded_has_changed(self):
        self.assertTrue(RECORDED, "nothing of this ABI is recorded: run scripts/record-abi.sh")
        for recorded in RECORDED:
            with self.subTest(recorded.name):
                fine, text = compare(recorded, INCLUDE.parent, self.work)
                self.assertTrue(fine, text)

    def test_changes_are_seen_and_named(self):
        for old, new, named in (("int32_t rank, size;               /* among all workers */",
                                 "int64_t rank, size;", "rank"), ("HVD_INVALID = 4,", "HVD_INVALID = 44,",
                                                                  "value_of_HVD_INVALID"),
                                ("HVD_API int32_t hvd_rank(hvd_context *context);",
                                 "HVD_API int64_t hvd_rank(hvd_context *context);", "hvd_rank")):
            with self.subTest(new):
                include = self.changed(old, new)
                fine, text = compare(INCLUDE.parent, include, self.work)
                self.assertFalse(fine)
                self.assertIn(named, text)
                shutil.rmtree(include)


if __name__ == "__main__":
    if shutil.which("abidiff") is None:
        print("SKIPPED: abidiff (package abigail-tools) is not installed")
        sys.exit(77)
    unittest.main(verbosity=2)
