"""leave_on_signal: a worker that gets SIGTERM goes, also while its main thread is in a collective."""

import os
import signal
from pathlib import Path

from test_jobs import start  # noqa: F401: a fixture

WORKER = Path(__file__).with_name("leaving_worker.py")


def test_sigterm_costs_the_others_no_step(start):  # noqa: F811
    job = start(3, [], worker=WORKER, min_np=2, max_np=3)
    victim = job.wait("train", rank=1)["pid"]
    os.kill(victim, signal.SIGTERM)
    ends = job.end()
    left = [end for end in ends if end["left"]]
    assert [end["pid"] for end in left] == [victim] and left[0]["result"] is None
    assert [end["result"] for end in ends if not end["left"]] == ["complete"] * 2
    steps = [(event["pid"], event["step"]) for event in job.seen if event["event"] == "step"]
    assert len(steps) == len(set(steps)), "a step was repeated"
    assert len({event["pid"]
                for event in job.seen if event["event"] == "train"}) == 3  # nobody was started in its place


def test_a_handler_that_was_there_before_is_put_back():
    import hvd

    class Worker:
        def leave(self, timeout):
            self.asked = timeout

    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append("mine"))
    try:
        worker = Worker()
        undo = hvd.elastic.leave_on_signal(signal.SIGUSR1, 7, context=worker)
        os.kill(os.getpid(), signal.SIGUSR1)
        undo()  # waits for who listens
        assert worker.asked == 7 and calls == []
        os.kill(os.getpid(), signal.SIGUSR1)
        assert calls == ["mine"]
    finally:
        signal.signal(signal.SIGUSR1, before)
