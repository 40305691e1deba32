"""What became of PyTorch's own tests: one line each, and what was not expected."""

import collections
import json
import time
import unittest
from pathlib import Path


class Result(unittest.TestResult):
    """A test's name is its function's, or with `classes` its class's, too."""

    def __init__(self, classes=False):
        super().__init__()
        self.found, self.began, self.parts = {}, 0.0, 2 if classes else 1

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def note(self, test, outcome, why=""):
        name = ".".join(test.id().split(".")[-self.parts:])
        self.found[name] = {"outcome": outcome, "why": why}
        print(
            f"{outcome:7} {name} {time.monotonic() - self.began:.1f} s {why.strip().splitlines()[-1][:300] if why else ''}",
            flush=True)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addError(self, test, problem):
        self.note(test, "failed", self._exc_info_to_string(problem, test))

    addFailure = addError

    def addExpectedFailure(self, test, problem):
        self.note(test, "passed")


def told(result, different, file=None):
    """Prints the numbers, and tests that fail though they are not in `different`, or pass though they are.
    Status 1 if there is such a one."""
    print(dict(collections.Counter(entry["outcome"] for entry in result.found.values())))
    if file:
        Path(file).write_text(json.dumps(result.found, indent=1))
    surprises = [name for name, entry in result.found.items()
                 if (entry["outcome"] == "failed") != (name in different)]
    print("unexpected:", surprises, flush=True)
    return 1 if surprises else 0
