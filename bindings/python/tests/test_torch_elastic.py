"""torch.distributed's groups in elastic jobs: a worker of DDP's or FSDP2's is killed, and those left go on.
"""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from conftest import PACKAGE, PATIENCE

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


LOADS = """
import sys
import torch
import hvd.torch as hvd
before = "torch._dynamo" in sys.modules
hvd.init()
loaded = set(sys.modules)
torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
more = [name for name in set(sys.modules) - loaded if name.startswith("torch.")]
print(f"before {before}, {len(more)} more", flush=True)
hvd.shutdown()
"""


def test_a_worker_loads_the_compiler_before_it_joins(tmp_path):
    """Members wait for a newcomer from then on; PyTorch would load it with the first optimizer."""
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    with closing(Job(1, [script], preload=("torch", ))) as job:
        job.end()
    assert "before False, 0 more" in job.lines, job.lines


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


RECONFIGURES = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import hvd, hvd.torch.distributed
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

rank, path, patience = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
store = dist.FileStore(path, 3)
dist.init_process_group("hvd", rank=rank, world_size=3, store=store, enable_reconfigure=True,
                        timeout=timedelta(seconds=30 * patience))
group = dist.group.WORLD


def expect(said, function, *arguments):
    try:
        function(*arguments)
    except hvd.HvdError as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"expected: {said}")


def meet(what, size):
    store.set(f"{what} {rank}", "")
    store.wait([f"{what} {other}" for other in range(size)], timedelta(seconds=30 * patience))


expect("no members yet", dist.all_reduce, torch.ones(1))
mine = c10d._get_reconfigure_handle()
store.set(f"handle {rank}", mine)
handles = [store.get(f"handle {other}").decode() for other in range(3)]
expect("expected this process's own once", c10d._reconfigure, 1, handles[:rank] + handles[rank + 1:])
expect("none twice", c10d._reconfigure, 1, [mine, mine])
expect("what _get_reconfigure_handle of backend hvd gives", c10d._reconfigure, 1, [mine, "tcp://nowhere"])
expect("what _get_reconfigure_handle of backend hvd gives", c10d._reconfigure, 1, [mine, '{"port": 70000}'])
c10d._reconfigure(1, handles[::-1]).wait()  # ranks are the handles' order
assert (dist.get_rank(), dist.get_world_size()) == (2 - rank, 3) and group.get_error() == ErrorType.SUCCESS
expect("uuid 1 was already used", c10d._reconfigure, 1, handles)
x = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(x)
assert x.item() == 6
meet("summed", 3)
if rank == 2:  # rank 0 of the group, which served its job
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(torch.ones(1 << 16))
except (hvd.HorovodInternalError, hvd.DriverLostError):
    pass
until = time.monotonic() + 30 * patience
while group.get_error() != ErrorType.COMM_ERROR:
    assert time.monotonic() < until, "nobody told the group"
    time.sleep(0.001)
c10d._reconfigure(2, {*handles[:2]}).wait()  # of a set the backend chooses the order
assert dist.get_world_size() == 2 and group.get_error() == ErrorType.SUCCESS
x = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(x)
assert x.item() == 3
work = dist.irecv(torch.zeros(1), 1 - dist.get_rank())
meet("receiving", 2)
group.abort()
expect("", work.wait)
c10d._reconfigure(3, handles[:2]).wait()
x = torch.tensor([1.0 + rank])
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(x, 0)
assert x.item() == 1
dist.destroy_process_group()
print("fine", flush=True)
"""


@pytest.mark.skipif(not groups.can_reconfigure(), reason="this PyTorch has no groups that take other members")
def test_a_group_of_backend_hvd_takes_other_members(tmp_path):
    """Among processes without a driver: rank 0 of the first members is killed, the others go on."""
    script = tmp_path / "worker.py"
    script.write_text(RECONFIGURES)
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("HVD_DRIVER", "HVD_SECRET"))}
    workers = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store", str(PATIENCE)],
                         env={**environment, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(3)
    ]
    try:
        told = [worker.communicate(timeout=200 * PATIENCE)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0, -signal.SIGKILL], told
    assert all(text.endswith("fine\n") for text in told[:2]), told
