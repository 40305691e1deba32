"""Files of PyTorch's own tests that are not in its wheel, against backend hvd: torch_own_files.py CHECKOUT
[--json FILE]

CHECKOUT is PyTorch's repository at the installed version, or those files of it in their places:
test/distributed/test_c10d_{fault_tolerance,pypg,common}.py. Nothing in them is changed: the class of the
first is made once more for this backend, and where the second makes a process group of one rank it is given
this backend's. A file that CHECKOUT lacks is left out by name. Status 1 if a test fails that is not in
DIFFERENT, or one passes that is.
"""

import argparse
import importlib
import sys
import unittest
from datetime import timedelta
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

import torch  # noqa: E402
from outcomes import Result, told  # noqa: E402

import hvd.torch.distributed as backend  # noqa: E402

# Tests that differ, and why. docs/torch-distributed.md has the list.
DIFFERENT: dict[str, str] = {}


class _LikeNccl2(str):
    """The backend's name where a test asks for what abort() leaves: an error, as with NCCL 2, and not Gloo's
    nothing."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "nccl2"

    def __hash__(self):
        return str.__hash__(self)


def fault_tolerance(module):
    """Its tests with three forked processes."""

    class FaultToleranceTest(module._make_fault_tolerance_test_class("hvd", "cpu")):
        def setUp(self):
            spawn, self._spawn_processes = self._spawn_processes, lambda: None
            super().setUp()
            self._spawn_processes = spawn
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @property
        def backend_name(self):
            return _LikeNccl2("hvd") if self._testMethodName == "test_reconfigure_after_abort" else "hvd"

    return [FaultToleranceTest, module.ReconfigureContractTest]


class _Counted(torch.distributed._Work):
    """HvdWork, which tells the group how often it was asked."""

    def __init__(self, inner, group):
        super().__init__()
        self.inner, self.group = inner, group

    def wait(self, timeout=timedelta(0)):
        self.group.wait_count += 1
        return self.inner.wait(timeout)

    def get_future(self):
        self.group.get_future_count += 1
        return self.inner.get_future()


class _OfOne(backend.HvdProcessGroup):
    def __init__(self, rank, world, use_wrapper):
        import hvd

        if not hvd.is_initialized():
            hvd.init(rank=0, size=1)
        super().__init__(rank, world, "torch own", None, timedelta(seconds=60))
        self.wait_count = self.get_future_count = 0
        self.use_wrapper = use_wrapper
        self.kept = []


def _counting(name):
    def method(self, *arguments):
        work = getattr(backend.HvdProcessGroup, name)(self, *arguments)
        if self.use_wrapper:
            return torch._C._distributed_c10d._create_work_from_future(work.get_future())
        self.kept.append(_Counted(work, self))
        return self.kept[-1]

    return method


for _name in ("allreduce", "broadcast", "allgather"):
    setattr(_OfOne, _name, _counting(_name))


def pypg(module):
    """Its tests of DDP over a group made in Python. The others make doubles of a process group, each for one
    of torch's own calls, and ask for what the double does."""
    module.LonelyRankProcessGroup = _OfOne
    return [module.TestDDPWithWorkSubclass, module.TestDDPWithWorkWrapper]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--json")
    given = parser.parse_args()
    directory = given.checkout.resolve() / "test" / "distributed"
    sys.path.insert(0, str(directory))
    result = Result(classes=True)
    for name, classes in (("test_c10d_fault_tolerance", fault_tolerance), ("test_c10d_pypg", pypg)):
        if not (directory / f"{name}.py").is_file():
            print(f"{directory / name}.py is not there: left out", flush=True)
            continue
        for case in classes(importlib.import_module(name)):
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return told(result, DIFFERENT, given.json)


if __name__ == "__main__":
    sys.exit(main())
