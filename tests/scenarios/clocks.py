"""Wall clocks of single processes that jump, by libfaketime; their monotonic clock goes on as it does.

A process that is started with Clocks.environment(name), or by way of Clocks.WRAPPER, has a clock of its own.
A file says by how many seconds it differs from the machine's, and is read each time the process asks.
NO_FAKE_STAT: libfaketime changes the times of files under a semaphore that a process shares with its
children. One that was killed there let all others of the job hang in stat(), a next driver, too.
"""

import glob
import os
import time

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
CLOSE_S = 60  # a worker may be stopped, or slow, between its two clocks


def library():
    """libfaketime for programs with several threads; None where it is not installed (package libfaketime)."""
    return next((path for pattern in LIBRARIES for path in sorted(glob.glob(pattern))), None)


def machine():
    """Seconds since the epoch by the machine's wall clock, which nobody sets here."""
    return time.time()


def offset_in(event):
    """Seconds by which the clock of the worker that wrote the event differs from the machine's."""
    return event["wall"] - event["t"] / 1e9 - (time.time() - time.monotonic())


class Clocks:
    """Of one job, in a folder of its own. `preload`: libraries that come before libfaketime."""

    # What starts a worker, in the environment of Clocks.for_workers: its clock has its process's number.
    WRAPPER = """
export FAKETIME_TIMESTAMP_FILE="$HVD_TEST_CLOCKS/$$" LD_PRELOAD="$HVD_TEST_CLOCK_PRELOAD"
export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1 NO_FAKE_STAT=1
echo +0 > "$FAKETIME_TIMESTAMP_FILE"
"""

    def __init__(self, folder, preload=()):
        os.mkdir(folder)
        self.preload = ":".join([*preload, library()])
        self.folder = folder
        self.offsets = {}  # by name
        self.since = {}    # by CLOCK_MONOTONIC, in ns

    def for_workers(self):
        return {"HVD_TEST_CLOCKS": self.folder, "HVD_TEST_CLOCK_PRELOAD": self.preload}

    def environment(self, name):
        """For one process, and for what it starts by no wrapper."""
        self.set(name, 0)
        return {
            "LD_PRELOAD": self.preload, "FAKETIME_TIMESTAMP_FILE": self._path(name), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1", "NO_FAKE_STAT": "1"
        }

    def set(self, name, offset):
        """Seconds from the machine's clock. From now on: a file that is there is replaced as a whole."""
        path = self._path(name)
        with open(path + ".new", "w") as file:
            file.write("%+d\n" % offset)
        os.rename(path + ".new", path)
        self.offsets[name] = offset
        self.since[name] = time.monotonic_ns()

    def jump(self, name, seconds):
        self.set(name, self.offsets.get(name, 0) + seconds)

    def wrong(self, events):
        """Those events of workers whose clock, by its number, is not what was set last before them. That is
        looked at for the newest one of each."""
        newest = {e["pid"]: e for e in events if e["t"] > self.since.get(e["pid"], float("inf"))}
        return [e for e in newest.values() if abs(offset_in(e) - self.offsets[e["pid"]]) > CLOSE_S]

    def _path(self, name):
        return os.path.join(self.folder, str(name))
