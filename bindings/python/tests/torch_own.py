"""PyTorch's own tests for process groups (torch.testing, in its wheel) against backend hvd: torch_own.py
[PATTERN]... [--json FILE]

Four forked processes a test, which meet by the file that PyTorch's tests meet by. What is asked of its Gloo
backend alone is asked of this one, too (_LikeGloo). Status 1 if a test fails that is not in DIFFERENT, or one
passes that is.
"""

import argparse
import collections
import fnmatch
import inspect
import os
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

from outcomes import Result, told  # noqa: E402


class _LikeGloo(str):
    """The backend's name to the tests: Gloo's where one asks what to expect, and where it is for Gloo or MPI
    alone."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not (self == other or other == "mpi")

    def __hash__(self):
        return hash("gloo")


os.environ.update(WORLD_SIZE="4", OMP_NUM_THREADS="1", TEMP_DIR=tempfile.mkdtemp(prefix="hvd-torch-own."))
process = os.environ
os.environ = collections.ChainMap(
    {"BACKEND": _LikeGloo("hvd"), "INIT_METHOD": "file://" + os.environ["TEMP_DIR"] + "/again"}, process)
import torch  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

DistTestCases.backend_feature["plugin"].add("hvd")
from torch.testing._internal.distributed import distributed_test  # noqa: E402

os.environ = process
os.environ["BACKEND"] = "mpi"  # of which no group is too small for a test

import hvd.torch.distributed  # noqa: E402,F401

# Tests that differ, and why. docs/torch-distributed.md has the list.
DIFFERENT = dict.fromkeys(
    ("test_barrier_timeout_full_group", "test_barrier_timeout_global", "test_barrier_timeout_group"),
    "reads Gloo's words; here the sentence names the ranks that have not come")
if "only implemented for GLOO" in inspect.getsource(torch.distributed.monitored_barrier):
    DIFFERENT |= dict.fromkeys(
        ("test_monitored_barrier_failure_order", "test_monitored_barrier_gloo",
         "test_monitored_barrier_gloo_subgroup", "test_monitored_barrier_wait_all_ranks"),
        "this PyTorch refuses monitored_barrier of any backend but Gloo")


class Own(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Forked: PyTorch is imported once, and not by each process of each test.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--json")
    given = parser.parse_args()
    names = [name for name in unittest.TestLoader().getTestCaseNames(Own)
             if any(fnmatch.fnmatch(name, pattern) for pattern in given.patterns)]
    result = Result()
    unittest.TestSuite(Own(name) for name in names).run(result)
    return told(result, DIFFERENT, given.json)


if __name__ == "__main__":
    sys.exit(main())
