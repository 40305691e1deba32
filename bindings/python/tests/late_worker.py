"""A worker of test_jobs.py's job that is shorter than the start of a worker: late_worker.py DIRECTORY.

The worker of slot 1 is killed, and the one in its place comes to the job when it has ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

directory = Path(sys.argv[1])
lost, started, over = (directory / name for name in ("lost", "started", "over"))
LATE = "import hvd\nhvd.init()\nprint('a member')"


def wait_for(file):
    """The driver's patience ends it."""
    while not file.exists():
        time.sleep(0.01)


def stay():
    import hvd

    hvd.init()
    state = hvd.elastic.ObjectState()

    @hvd.elastic.run
    def train(state):
        while hvd.size() == 2:
            state.commit()
        wait_for(started)

    train(state)
    hvd.shutdown()
    over.touch()


def be_lost():
    import hvd

    lost.touch()
    hvd.init()
    os.kill(os.getpid(), signal.SIGKILL)


def be_late():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started.touch()
    wait_for(over)
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    said = {"status": done.returncode, "output": done.stdout, "errors": done.stderr}
    print(json.dumps({"event": "late", **said}), flush=True)


(stay if os.environ["HVD_SLOT"] == "0" else be_late if lost.exists() else be_lost)()
