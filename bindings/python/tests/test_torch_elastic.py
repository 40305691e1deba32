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
    assert all(end["own"] for end in ends), "a connection of the program's own was cut"
    again = [event for event in job.seen if event["event"] == "train" and event["size"] == 2]
    assert [event["step"] for event in again] == [4, 4], again
    kept = backend == "gloo" and groups.can_reconfigure()
    assert all(event["kept"] == kept for event in again), again


SEVERAL = """
import torch, torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # stands for NCCL where there is no GPU
import hvd.torch as hvd
hvd.init()
group = hvd.elastic.Group("cpu:gloo,cuda:fake", timeout=300.0)
for turn in range(2):
    with group:
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == hvd.size() and not group.reconfigures
try:
    with hvd.elastic.Group("cpu:gloo,cuda:fake", timeout=300.0, reconfigure=True):
        print("taken", flush=True)
except hvd.InvalidError as error:
    assert "expected reconfigure=False" in str(error), error
print("fine", flush=True)
hvd.shutdown()
"""


@pytest.mark.skipif(not groups.can_reconfigure(), reason="this PyTorch keeps no group")
def test_several_backends_at_once_are_made_anew_each_time(tmp_path):
    script = tmp_path / "several.py"
    script.write_text(SEVERAL)
    with closing(Job(2, [script])) as job:
        job.end()
    assert [line for line in job.lines if not line.startswith("driver:")].count("fine") == 2, job.lines


def test_an_error_of_the_program_s_own_stays_one(python):
    """Also of a worker that is alone, whose generation is 0."""
    python("""
        import hvd.torch as hvd
        hvd.init()
        try:
            with hvd.elastic.Group("gloo", patience=0.1):
                raise RuntimeError("mine")
        except RuntimeError as error:
            assert type(error) is RuntimeError and str(error) == "mine", repr(error)
        hvd.shutdown()
        """, timeout=200)


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
