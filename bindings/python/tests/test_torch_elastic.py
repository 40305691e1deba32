"""torch.distributed's groups in elastic jobs: a worker of DDP's or FSDP2's is killed, and those left go on.
"""

from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 2):
    pytest.skip("this PyTorch's process groups can't be made in Python", allow_module_level=True)

from forked import Job  # noqa: E402

from hvd.torch import groups  # noqa: E402

WORKER = Path(__file__).with_name("torch_elastic_worker.py")
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
KINDS = ["ddp", *(["fsdp"] if VERSION >= (2, 6) else [])]  # which has fully_shard


def test_which_pytorch_reconfigures():
    """The functions that Group looks for have not been renamed, and nothing before them is taken for them."""
    assert groups.can_reconfigure() == (VERSION >= (2, 14))


@pytest.mark.parametrize("backend", ["hvd", "gloo"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_killed(kind, backend):
    """The last commit comes back, two go on, and the result is that of one model which saw all data of every
    step once."""
    with closing(Job(3, [WORKER, backend, kind, 12], min_np=2)) as job:
        ready = {event["rank"]: event for event in (job.wait("ready") for _ in range(3))}
        job.kill(ready[0 if backend == "gloo" else 1]["pid"])  # rank 0 has torch's store
        ends = job.end()
    assert len(ends) == 2 and all(end["error"] < 1e-5 and end["step"] == 12 for end in ends), ends
    assert all(end["sizes"] == [3, 2, 2] for end in ends), ends
    again = [event for event in job.seen if event["event"] == "train" and event["size"] == 2]
    assert [event["step"] for event in again] == [4, 4], again
    kept = backend == "gloo" and groups.can_reconfigure()
    assert all(event["kept"] == kept for event in again), again


def test_hidden_commits_give_the_bits_of_those_that_wait():
    """Commits at every step, a worker that is killed while the survivors copy, and batch normalization, whose
    buffers each forward pass writes."""
    bits = {}
    for kind in ("waits", "hides"):
        with closing(Job(3, [WORKER, "hvd", kind, 12], min_np=2)) as job:
            ready = {event["rank"]: event for event in (job.wait("ready") for _ in range(3))}
            job.kill(ready[1]["pid"])
            ends = job.end()
        assert len(ends) == 2 and all(end["step"] == 12 and len(end["sizes"]) == 12 for end in ends), ends
        assert sum(size == 3 for size in ends[0]["sizes"]) == 6, ends
        bits[kind] = {end["rank"]: end["bits"] for end in ends}
    assert bits["hides"] == bits["waits"], bits
