"""Futures of torch.distributed's operations over backend hvd: callbacks that wait for others, and DDP's hooks
that do."""

import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from conftest import PACKAGE, PATIENCE

torch = pytest.importorskip("torch")

import torch_groups  # noqa: E402
from forked import Job  # noqa: E402

HEAD = torch_groups.HEAD + """
def begin(value):
    return dist.all_reduce(torch.full((2,), float(value)), async_op=True)
"""

NESTED = HEAD + """
def direct(future):
    return future.value()[0] + begin(1).get_future().wait()[0]
assert begin(1).get_future().then(direct).then(direct).wait().tolist() == [3 * size] * 2
def together(future):  # waits in C++
    return torch.futures.collect_all([begin(i).get_future() for i in range(3)]).wait()
values = begin(1).get_future().then(together).wait()
assert [value.wait()[0][0].item() for value in values] == [0, size, 2 * size]
def chained(future):
    return begin(2).get_future().then(lambda found: found.value()[0] + begin(1).get_future().wait()[0]).wait()
assert begin(1).get_future().then(chained).wait().tolist() == [3 * size] * 2
work = begin(3)
assert work.get_future().then(lambda _: work.get_future().value()[0] + 0).wait().tolist() == [3 * size] * 2
def fails(future):
    raise KeyError("of the callback")
try:
    begin(1).get_future().then(fails).wait()
    print("no error")
except KeyError:
    pass
dist.destroy_process_group()
"""

ORDER = HEAD + """
# Rank 0's callback runs before its next operation is called, rank 1's after.
letter = torch.zeros(1)
if rank == 0:
    dist.recv(letter, 1)
work = begin(1)
if rank == 0:
    work.wait()
inner = work.get_future().then(lambda _: dist.all_reduce(torch.ones(5), async_op=True).get_future().wait()[0])
last = dist.all_reduce(torch.ones(3), async_op=True)
if rank == 1:
    dist.send(letter, 0)
last.wait()
assert inner.wait().tolist() == [size] * 5
dist.destroy_process_group()
"""

POWER_SGD = HEAD + """
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)], torch.nn.Linear(32, 1))
parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)  # a few buckets
state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
parallel.register_comm_hook(state, powerSGD_hook)
for step in range(8):
    parallel.zero_grad()
    parallel(torch.randn(8, 32) + rank).pow(2).mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
assert len(state.p_memory_dict) > 1, "compressed nothing"
mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
everybody = [torch.zeros_like(mine) for _ in range(size)]
dist.all_gather(everybody, mine)
assert all(torch.equal(mine, theirs) for theirs in everybody)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("source", (NESTED, ORDER, POWER_SGD), ids=("nested", "order", "powersgd"))
def test_callbacks_that_wait(tmp_path, source):
    script = tmp_path / "worker.py"
    script.write_text(source + "\nprint('fine', flush=True)\nhvd.shutdown()\n")
    with closing(Job(2, [script])) as job:
        job.end()
        lines = [line for line in job.lines if not line.startswith("driver:")]
    assert " ".join(lines).replace("finefine", "fine fine").split() == ["fine"] * 2, "\n".join(lines)


class Part:
    """A handle that ends when its event is set."""

    def __init__(self, event):
        self.event = event

    def wait(self, timeout=None):
        assert self.event.wait(60 * PATIENCE)

    def done(self):
        return self.event.is_set()


def test_more_callbacks_wait_than_there_are_threads(monkeypatch):
    from hvd.torch import _work

    monkeypatch.setattr(_work, "_LINGER_S", 0.01)
    first, second = threading.Event(), threading.Event()
    futures, seen = [], []

    def inner(future):
        seen.append(threading.active_count())
        if len(seen) == _work._THREADS:  # all of them are in callbacks
            second.set()
        return _work.HvdWork(Part(second), lambda _: 1).get_future().wait() + future.value()

    before = threading.active_count()
    for i in range(4 * _work._THREADS):
        futures.append(_work.HvdWork(Part(first), lambda _, i=i: i).get_future().then(inner))
    first.set()
    deadline = time.monotonic() + 60 * PATIENCE
    while not all(future.done() for future in futures):
        assert time.monotonic() < deadline, f"{len(seen)} callbacks were called"
        time.sleep(0.001)
    assert [future.value() for future in futures] == [i + 1 for i in range(4 * _work._THREADS)]
    assert max(seen) <= before + _work._THREADS
    while any(thread.name == "hvd-futures" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread stays"
        time.sleep(0.001)


def test_futures_that_the_program_has_set_leave_the_threads():
    from hvd.torch import _work

    now, later = threading.Event(), threading.Event()
    now.set()
    for _ in range(_work._THREADS + 1):
        taken = _work.HvdWork(Part(later), lambda _: 1).get_future()
        taken.set_result(2)
    later.set()
    last = _work.HvdWork(Part(now), lambda _: 3).get_future()
    deadline = time.monotonic() + 60 * PATIENCE
    while not last.done():  # set by a thread, as nobody waits
        assert time.monotonic() < deadline, "nobody sets the future"
        time.sleep(0.001)
    assert (taken.value(), last.value()) == (2, 3)


LOCALS_UNCOUNTED = """
import sys, weakref
real = sys.getrefcount
def native(thing):
    return real(thing)
probe = object()
extra = native(probe) - real(probe)  # of this double's own call
sys.getrefcount = lambda thing: real(thing) - extra - 1
import torch
from hvd.torch._work import HvdWork, let_go
class Over:
    def wait(self, timeout=None):
        pass
    def done(self):
        return True
dropped, held = torch.ones(1), torch.ones(1)
HvdWork(Over(), lambda _, value=dropped: value)
work = HvdWork(Over(), lambda _, value=held: value)
ref = weakref.ref(dropped)
del dropped
let_go()
assert ref() is None
assert work.result() is held
print("fine")
"""


def test_a_python_that_counts_no_locals():
    """A double of Python 3.14's getrefcount: one less than this one's."""
    done = subprocess.run([sys.executable, "-B", "-c", LOCALS_UNCOUNTED], capture_output=True, text=True,
                          timeout=120 * PATIENCE, cwd=PACKAGE)
    assert done.stdout == "fine\n", done.stdout + done.stderr
