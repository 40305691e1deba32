"""What PyTorch adds: the optimizer, its hooks, states, functions with Horovod's parameters."""

import copy
import gc
import sys
import weakref

import pytest

from conftest import PACKAGE, PATIENCE

torch = pytest.importorskip("torch")

import hvd as plain  # noqa: E402
import hvd.torch as hvd  # noqa: E402


@pytest.fixture
def worker(alone):
    torch.manual_seed(1)
    return alone


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def train(model, optimizer, steps, passes=1):
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(8, 4, generator=random)).pow(2).sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
                                  lambda p: torch.optim.Adam(p, lr=0.01)])
@pytest.mark.parametrize("options", [{}, {"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}])
def test_alone_it_is_the_same_as_without(worker, make, options):
    reference, model = network(), network()
    expected = train(reference, make(reference.parameters()), 5)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    assert isinstance(optimizer, type(make(model.parameters())))
    for mine, theirs in zip(train(model, optimizer, 5), expected):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_gradients_are_averaged_over_ranks(tmp_path):
    """Two ranks with half of a batch each learn what one learns with the whole."""
    script = tmp_path / "worker.py"
    script.write_text("""
import torch, hvd.torch as hvd
hvd.init()
def network():
    torch.manual_seed(hvd.rank() + 5)  # different: the broadcast makes them equal
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
model = network()
unused = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
optimizer = hvd.DistributedOptimizer(optimizer, [*model.named_parameters(), ("unused", unused)], backward_passes_per_step=2)
hvd.broadcast_parameters(model.state_dict())
hvd.broadcast_optimizer_state(optimizer)
whole = network()
whole.load_state_dict(model.state_dict())
single = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
single_schedule = torch.optim.lr_scheduler.StepLR(single, 2)
for step in range(6):
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad(); single.zero_grad()
    for part in data[8 * hvd.rank():8 * hvd.rank() + 8].split(4):
        (model(part).pow(2).mean() / 2).backward()
    if step % 2:
        optimizer.step()
    else:
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        with optimizer.skip_synchronize():
            optimizer.step()
    whole(data).pow(2).mean().backward(); single.step()
    schedule.step(); single_schedule.step()
for mine, theirs in zip(model.parameters(), whole.parameters()):
    assert torch.allclose(mine, theirs, atol=1e-5), (mine, theirs)
packed = hvd.allreduce(torch.full((3,), hvd.rank() + 0.5), name="half", compression=hvd.Compression.fp16)
assert packed.dtype == torch.float32 and packed.tolist() == [1.0] * 3
assert hvd.allreduce(torch.ones(1), average=False).item() == 2
x = torch.full((2, 1), 3.0, requires_grad=True)
hvd.allreduce(x, op=hvd.Sum, name="a").sum().backward()
assert x.grad.tolist() == [[2], [2]]
x.grad = None
(hvd.allgather(x, name="g") * (1 + hvd.rank())).sum().backward()
assert x.grad.tolist() == [[1.5], [1.5]], x.grad  # the average of the ranks', as Horovod's
x.grad = None
hvd.broadcast(x, 0, name="b").sum().backward()
assert x.grad.tolist() == [[1.0 * (hvd.rank() == 0)]] * 2
rows, received = hvd.alltoall(torch.arange(3), splits=torch.tensor([1, 2]))
assert received.dtype == torch.int32 and received.tolist() == [1 + hvd.rank()] * 2
print("fine", flush=True)
hvd.shutdown()
""")
    lines = []
    try:
        plain.driver.run([sys.executable, str(script)], np=2, hosts="localhost:2", restart=False,
                         elastic_timeout=60 * PATIENCE,
                         environment={"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
                         output=lambda rank, host, slot, is_stderr, line: lines.append(line),
                         timeout=100 * PATIENCE)
    except plain.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines.count("fine") == 2, lines


GRADIENTS = """
import torch, hvd.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()

def gradient(make, *shape, needs=True):
    x = torch.full(shape or (size, 2), 3.0, requires_grad=needs)
    result = make(x)
    results = result if isinstance(result, (list, tuple)) else [result]
    if needs:
        sum((r * (1 + rank)).sum() for r in results if r.is_floating_point()).backward()
    return x.grad.tolist() if needs else None

total = size * (size + 1) / 2
mean = total / size
each = [1.0 + r for r in range(size)]
assert gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)) == [[total] * 2] * size
assert gradient(lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)) == [[3 * total] * 2] * size
assert gradient(lambda x: hvd.grouped_allreduce([x, x.half()], compression=hvd.Compression.fp16)) == [[2 * mean] * 2] * size
assert gradient(lambda x: hvd.allgather(x)) == [[mean] * 2] * size
assert gradient(lambda x: hvd.grouped_allgather([x, x[:1 + rank]])) == [
    [mean * (2 if row < 1 + rank else 1)] * 2 for row in range(size)]
assert gradient(lambda x: hvd.broadcast(x, 1)) == [[mean * (rank == 1)] * 2] * size
assert gradient(lambda x: hvd.alltoall(x)) == [[e] * 2 for e in each]
assert gradient(lambda x: hvd.alltoall(x, [size] + [0] * (size - 1))) == [[1.0] * 2] * size
# Horovod's gradient of a sum is `size` times what each share's is, that of an average the shares' themselves.
assert gradient(lambda x: hvd.reducescatter(x)) == [[e] * 2 for e in each]
assert gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5)) == [[e * size / 2] * 2 for e in each]
assert gradient(lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Average)) == [[2 * e] * 2 for e in each]
for make in (lambda x: hvd.allreduce(x, op=hvd.Max), lambda x: hvd.reducescatter(x, op=hvd.Max)):
    try:
        gradient(make)
        print("a maximum has no gradient")
    except hvd.InvalidError as error:
        assert "has no gradient" in str(error)
# Who needs no gradient takes part in the same operation, named or not.
for make in (lambda x: hvd.allgather(x), lambda x: hvd.reducescatter(x, name="r"), lambda x: hvd.alltoall(x),
             lambda x: hvd.grouped_allreduce([x])):
    with torch.set_grad_enabled(rank == 0):
        make(torch.ones(size, requires_grad=rank == 0))
"""

SPARSE = """
import torch, hvd.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
for sparse_as_dense in (False, True):
    torch.manual_seed(1)
    table = torch.nn.Embedding(5, 2, sparse=True)
    rest = torch.nn.Linear(2, 1)
    before = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*table.parameters(), *rest.parameters()], lr=1.0),
                                         groups=[list(rest.parameters())], sparse_as_dense=sparse_as_dense)
    for step in range(2):
        optimizer.zero_grad()
        if step == 0 or rank == 0:  # the second time one rank alone has looked something up
            table(torch.tensor([rank, 4])).sum().backward()
        optimizer.step()
    change = before - table.weight.detach()
    expected = torch.zeros(5, 2)
    for r in range(size):
        expected[r] += 1 / size
    expected[4] += 1
    expected[0] += 1 / size
    expected[4] += 1 / size
    assert torch.allclose(change, expected), (change, expected)
gathered = hvd.sparse_allreduce_async(torch.eye(size)[rank:rank + 1].to_sparse(), "s", hvd.Sum)
assert hvd.synchronize(gathered).to_dense().tolist() == [[1.0] * size] and gathered().is_sparse
"""

SETS = """
import torch, hvd.torch as hvd
hvd.init()
rank = hvd.rank()
pair = hvd.add_process_set([0, 2])
torch.manual_seed(rank)
model, twin = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
if pair.included():
    hvd.broadcast_parameters(model.state_dict(), 0, process_set=pair)
twin.load_state_dict(model.state_dict())
options = dict(lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), **options), model.named_parameters(),
                                     process_set=pair)
single = torch.optim.SGD(twin.parameters(), **options)
for step in range(3):
    optimizer.zero_grad(); single.zero_grad()
    data = torch.full((1, 2), 1.0 + rank)
    model(data).pow(2).sum().backward()
    twin(data).pow(2).sum().backward()
    if step == 1:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()
    single.step()
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
alone = torch.cat([p.detach().flatten() for p in twin.parameters()])
everybody = hvd.allgather(mine.unsqueeze(0), "w")
assert torch.equal(everybody[0], everybody[2]) and not torch.equal(everybody[0], everybody[1])
assert torch.equal(mine, alone) == (rank == 1)
"""


def run_ranks(tmp_path, source, size):
    script = tmp_path / "worker.py"
    script.write_text(source + "\nprint('fine', flush=True)\nhvd.shutdown()\n")
    lines = []
    try:
        plain.driver.run([sys.executable, str(script)], np=size, hosts=f"localhost:{size}", restart=False,
                         elastic_timeout=60 * PATIENCE,
                         environment={"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
                         output=lambda rank, host, slot, is_stderr, line: lines.append(line),
                         timeout=100 * PATIENCE)
    except plain.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines == ["fine"] * size, "\n".join(lines)


@pytest.mark.parametrize("source, size", [(GRADIENTS, 2), (SPARSE, 2), (SETS, 3)])
def test_on_several_ranks(tmp_path, source, size):
    run_ranks(tmp_path, source, size)


NEWCOMER = """
import torch, hvd.torch as hvd
hvd.init()
rank = hvd.rank()
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = hvd.elastic.TorchState(model, optimizer, step=rank)

def step():
    optimizer.zero_grad()
    model(torch.full((2, 600), 1.0 + state.step)).square().sum().backward()
    optimizer.step()

def digest():
    tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    return [float(t.detach().double().sum()) for t in tensors]

if rank == 0:  # the others have no moments yet
    step()
    step()
state.sync()
assert state.step == 0 and len(optimizer.state) == 4
for _ in range(3):
    step()
    state.commit()
kept = digest()
assert hvd.allgather_object(kept) == [kept] * hvd.size()
step()
assert digest() != kept
state.restore()
assert digest() == kept
if rank == 1:  # another optimizer, which has nothing
    state.optimizer = optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
state.sync()
assert digest() == kept and optimizer.param_groups[0]["lr"] == 0.01
step()
state.commit()
assert hvd.allgather_object(digest()) == [digest()] * hvd.size()
"""


def test_newcomers_get_what_the_optimizer_has(tmp_path):
    run_ranks(tmp_path, NEWCOMER, 2)


@pytest.mark.parametrize("hidden", [False, True])
def test_what_the_optimizer_lends_is_copied_when_commit_returns(worker, hidden):
    model = torch.nn.Linear(700, 700)  # moments of more than a piece
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=hidden)
    for _ in range(3):
        model(torch.ones(2, 700)).sum().backward()
        optimizer.step()
        kept = copy.deepcopy(optimizer.state_dict())
        state.commit()
        for moments in optimizer.state.values():
            for moment in moments.values():
                moment.fill_(-1)
        state.restore()
        for number, moments in optimizer.state_dict()["state"].items():
            assert all(torch.equal(value, kept["state"][number][name]) for name, value in moments.items())
    assert not state._problem.lent
    gone = weakref.ref(optimizer.state[model.weight]["exp_avg"])
    state.commit()
    state.optimizer = optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del moment, moments
    gc.collect()
    assert gone() is None
    state.commit()
    state.restore()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_tensors_of_any_layout_are_committed(worker):
    wide = torch.arange(12.0).reshape(3, 4)
    values = {
        "turned": wide.t(), "some": wide[:, 1:3], "none": torch.empty(0, 3), "bits": wide > 3,
        "negated": torch.tensor([1 + 2j]).conj().imag, "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)), "number": torch.tensor(3, dtype=torch.int16)
    }
    state = hvd.elastic.TorchState(all=values)
    kept = {key: value.detach().clone() for key, value in values.items()}
    state.commit()
    state.all = None
    state.restore()
    assert {key: value.tolist() for key, value in state.all.items()} == {
        key: value.tolist() for key, value in kept.items()}
    for left in (0, 8):
        shrunk = torch.ones(3)
        shrunk.untyped_storage().resize_(left)
        state.all = shrunk
        with pytest.raises(hvd.InvalidError, match=f"storage has {left} bytes, and 12 are needed"):
            state.commit()
    assert state.revision == 1


@pytest.mark.parametrize("groups", [{"num_groups": 2}, {"groups": 1}, {"groups": "lists"}])
def test_groups(worker, groups):
    reference, model = network(), network()
    expected = train(reference, torch.optim.SGD(reference.parameters(), lr=0.1), 3)
    if groups.get("groups") == "lists":
        groups = {"groups": [list(model[0].parameters()), [model[2].weight]]}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         model.named_parameters(), **groups)
    for mine, theirs in zip(train(model, optimizer, 3), expected):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_small_gradients_go_together():
    from hvd.torch.optimizer import _buckets

    def of(kib, dtype=torch.float32):
        return torch.empty(kib << 10, dtype=torch.uint8).view(dtype)

    small = [of(200) for _ in range(7)]
    half, large, elsewhere = of(100, torch.float16), of(257), torch.empty(4, device="meta")
    lazy = torch.nn.LazyLinear(3).weight
    parameters = [small[0], large, *small[1:6], half, elsewhere, lazy, small[6]]
    found = [[next(i for i, p in enumerate(parameters) if p is q) for q in bucket]
             for bucket in _buckets(parameters)]
    assert found == [[3, 4, 5, 6, 10], [7], [0, 2]]


def test_wrong_use(worker):
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for options, match in (({"named_parameters": [
        ("a", p) for p in model.parameters()
    ]}, "more than once"), ({"named_parameters": list(model.named_parameters())[:2]}, "have no name"), ({
            "named_parameters": list(model.parameters())
    }, "expected model.named_parameters"), ({"backward_passes_per_step": 0}, "at least 1"),
                           ({"groups": 0}, "at least 1"), ({"num_groups": -1}, "0 or more"),
                           ({"groups": [[inner.param_groups[0]["params"][0]] * 2]},
                            "more than one place"), ({"groups": [["weight"]]}, "lists of parameters"),
                           ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "op=Average only")):
        with pytest.raises(hvd.InvalidError, match=match):
            hvd.DistributedOptimizer(inner, **options)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    with pytest.raises(hvd.InvalidError, match="already"):
        hvd.DistributedOptimizer(optimizer)
    model(torch.ones(8, 4)).sum().backward()
    with pytest.raises(hvd.InvalidError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(hvd.InvalidError, match="more than backward_passes_per_step=1"):
        model(torch.ones(8, 4)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    with pytest.raises(hvd.InvalidError, match="not both"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)


def test_state_is_restored_bit_for_bit(worker):
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01),
                                         model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = hvd.elastic.ElasticSampler(100, batch_size=10)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, schedule=schedule, sampler=sampler,
                                   epoch=1)
    state.commit()
    fresh = copy.deepcopy(model.state_dict())
    train(model, optimizer, 3)
    schedule.step()
    state.restore()
    assert not optimizer.state_dict()["state"] and all(
        torch.equal(v, fresh[k]) for k, v in model.state_dict().items())
    train(model, optimizer, 2)
    schedule.step()
    sampler.record_batch(0, 10)
    state.epoch = 2
    state.commit()
    kept, kept_optimizer = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = train(model, optimizer, 2)
    sampler.record_batch(1, 10)
    schedule.step()
    state.epoch = 3
    state.restore()
    assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())
    assert str(optimizer.state_dict()) == str(kept_optimizer)
    assert (state.epoch, schedule.last_epoch, sampler.info().processed) == (2, 1, 10)
    assert all(torch.equal(a, b) for a, b in zip(train(model, optimizer, 2), expected))


def test_a_hidden_commit_at_which_hosts_change_is_what_all_leave_with(worker, monkeypatch):
    """The interrupt comes with the next step, when the loop has counted on already."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=True, batch=0)
    end = hvd.elastic.TorchState.commit_end

    def ends_with_news(self):
        end(self)
        raise hvd.elastic.HostsUpdatedInterrupt("hosts have changed")

    state.commit()
    state.batch = 1
    monkeypatch.setattr(hvd.elastic.TorchState, "commit_end", ends_with_news)
    with pytest.raises(hvd.elastic.HostsUpdatedInterrupt):
        optimizer.step()
    assert state.batch == 0


def test_hidden_commits_end_before_the_optimizer_steps(worker):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=True, step=0)
    data = torch.randn(8, 4)

    def step():
        optimizer.zero_grad()
        model(data).square().sum().backward()
        optimizer.step()
        state.step += 1

    for commits in (1, 2):
        step()
        kept = copy.deepcopy(model.state_dict())
        state.commit()
        assert state._begun
        model(data)  # writes buffers, which were copied at once
        state.step += 100
        optimizer.zero_grad()
        optimizer.step()
        assert not state._begun and state.statistics().commits == commits
        state.restore()
        assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items()) and state.step == commits
    state.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state.commit()
    optimizer.step()
    assert state._begun, "that optimizer is no part of the state any more"
    state.optimizer.step()
    assert not state._begun
    state.commit()
    state.commit()
    state.restore()
    with pytest.raises(hvd.InvalidError, match="not begun"):
        state.commit_end()


def test_a_parameter_that_is_written_during_a_hidden_commit_is_named(worker):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=True)

    def steps():
        model(torch.randn(8, 4)).sum().backward()  # writes gradients and buffers
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        state.commit()
        steps()
    state.commit()
    with torch.no_grad():
        model[1].bias.clamp_(-1, 1)
    with pytest.raises(hvd.InvalidError, match="'model.1.bias' was written between"):
        optimizer.step()
    optimizer.step()
    state.commit()
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
    with pytest.raises(hvd.InvalidError, match="'model.0.weight'"):
        state.commit()
    state.model = model = torch.nn.Linear(2, 2)  # what is no part of it any more is not looked at
    state.commit()
    state.optimizer.step()
    assert not state._begun


@pytest.mark.parametrize("way", ["restore", "loss"])
def test_what_was_written_during_a_hidden_commit_does_not_come_back(worker, way):
    model = torch.nn.Linear(4, 4)
    state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), hidden_commits=True)

    @hvd.elastic.run
    def train(state):
        state.commit()
        with torch.no_grad():
            model.bias.add_(1)
        raise hvd.elastic.HorovodInternalError("a peer is lost")

    if way == "loss":
        with pytest.raises(hvd.InvalidError, match="'model.bias' was written between"):
            train(state)
        return
    state.commit()
    state.restore()
    state.commit()
    with torch.no_grad():
        model.bias.add_(1)
    with pytest.raises(hvd.InvalidError, match="'model.bias' was written between"):
        state.restore()



def test_attributes_of_a_state_may_be_replaced(worker):
    model = network()
    state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                   best=torch.tensor(0.0), sampler=hvd.elastic.ElasticSampler(10), step=0)
    best = state.best
    state.best = torch.tensor(1.0)
    state.restore()
    assert state.best.item() == 0
    state.commit()
    state.best = torch.tensor([1.0, 2.0])  # of another shape
    state.commit()
    state.best += 5
    state.restore()
    assert state.best.tolist() == [1, 2] and best.item() == 0
    state.model = torch.nn.Linear(2, 2)
    state.optimizer = torch.optim.Adam(state.model.parameters(), lr=0.01)
    state.sampler = hvd.elastic.ElasticSampler(20)
    state.step = torch.ones(1)  # of another kind
    state.commit()
    kept = copy.deepcopy(state.model.state_dict())
    state.model(torch.ones(2)).sum().backward()
    state.optimizer.step()
    state.step += 1
    state.restore()
    assert all(torch.equal(v, kept[k]) for k, v in state.model.state_dict().items())
    assert not state.optimizer.state_dict()["state"] and state.step.item() == 1 and state.sampler.info(
    ).samples == 20
    old = state.model
    with pytest.raises(hvd.InvalidError, match="dtype"):
        state.model = torch.nn.Linear(2, 2).to(torch.complex64)
    assert state.model is old
    state.commit()


def test_top_level_knows_torch_state(worker):
    assert plain.elastic.TorchState is hvd.elastic.TorchState


def test_with_a_data_loader(worker):
    data = torch.utils.data.TensorDataset(torch.arange(20))
    sampler = hvd.elastic.ElasticSampler(data, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    seen = []
    for index, (batch,) in enumerate(loader):
        seen += batch.tolist()
        sampler.record_batch(index, 4)
        if index == 2:
            break
    for (batch,) in loader:
        seen += batch.tolist()
    assert sorted(seen) == list(range(20)) and len(loader) == 2
