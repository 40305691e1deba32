"""Shards with several ranks: a range for each, a loss that copies outlive, and one that the program's own
checkpoint mends."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("numpy")
from test_jobs import Job  # noqa: E402

WORKER = Path(__file__).with_name("shards_worker.py")


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(*arguments):
        jobs.append(Job(tmp_path, 3, arguments, worker=WORKER, min_np=2, max_np=3))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.mark.parametrize("copies", [1, 0])
def test_a_worker_is_killed(start, copies):
    """With a copy the commit comes back, in ranges of the new size; without one on_lost() loads step 0."""
    job = start(copies, 8)
    os.kill(job.wait("ready")["pid"], signal.SIGKILL)
    ends = job.end()
    assert len(ends) >= 2 and all(end["same"] and end["step"] == 8 for end in ends), ends
    trained = [event for event in job.seen if event["event"] == "train"]
    assert all(event["same"] for event in trained), trained
    again = [event for event in trained if event["size"] == 2 or event["step"] > 0]
    assert len(again) >= 2 and (copies == 0 or min(event["step"] for event in again) >= 3), again
    lost = [event for event in job.seen if event["event"] == "lost"]
    if copies:
        assert lost == []
        return
    assert len(lost) >= 2 and {event["rank"] for event in lost} == set(range(lost[0]["size"])), lost
    assert all("'m'" in event["sentence"] for event in lost), lost
