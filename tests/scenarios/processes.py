"""Processes, children of the test or not: waits until they have ended, or stand still."""

import os
import select
import signal
import time

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for slow builds


def wait_for_exit(pid, timeout):
    """True as soon as the process (not necessarily our child) is gone; False after `timeout` seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(handle)


def stop(pid):
    """Stops the process, and returns once it stands still: its other threads run on until the one that takes
    the signal has had a processor."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20 * PATIENCE
    while not _stands_still(pid):
        if time.monotonic() > deadline:
            raise AssertionError("process %d does not stop" % pid)
        time.sleep(0.002)


def _stands_still(pid):
    states = set()
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/stat" % (pid, thread)) as file:
                states.add(file.read().rpartition(")")[2].split()[0])
    except OSError:
        return False  # a thread has ended meanwhile
    return states == {"T"}
