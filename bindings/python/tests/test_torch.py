"""What PyTorch adds: the optimizer, its hooks, functions with Horovod's parameters."""

import copy
import sys

import pytest

from conftest import PACKAGE, PATIENCE

torch = pytest.importorskip("torch")

from torch_network import network, run_ranks, train, worker  # noqa: E402, F401: a fixture

import hvd as plain  # noqa: E402
import hvd.torch as hvd  # noqa: E402


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


@pytest.mark.parametrize("source, size", [(GRADIENTS, 2), (SPARSE, 2), (SETS, 3)])
def test_on_several_ranks(tmp_path, source, size):
    run_ranks(tmp_path, source, size)


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


def distributed(model, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                    **options)


def test_loading_drops_reductions_under_way(worker):
    """As in Horovod: gradients made before a load are not those of the next step."""
    model = network()
    optimizer = distributed(model)
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()


def test_a_dropped_reduction_ends_before_its_name_comes_again(worker, monkeypatch):
    model = network()
    optimizer = distributed(model)
    order = []

    class UnderWay:
        def done(self):
            return False

        def wait(self):
            order.append("ended")
            raise hvd.WaitTimeoutError("of gradients that nobody uses")

    unit = optimizer._hvd.units[0]
    unit.handles.append((UnderWay(), [], [], [], None))
    optimizer.load_state_dict(optimizer.state_dict())
    begin = plain._default.grouped_allreduce_async_
    monkeypatch.setattr(plain._default, "grouped_allreduce_async_",
                        lambda *given, **options: order.append("begun") or begin(*given, **options))
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    assert order[:2] == ["ended", "begun"] and order.count("ended") == 1


class Halved(hvd.compression.Compressor):
    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, context):
        return tensor * 2


@pytest.mark.parametrize("op", (hvd.Sum, hvd.Adasum), ids=("sum", "adasum"))
def test_what_horovods_users_read_and_derive_from(worker, op):
    assert issubclass(hvd.Compression.fp16, hvd.compression.Compressor)
    assert issubclass(hvd.Compression.none, hvd.compression.Compressor)
    with pytest.raises(NotImplementedError):
        hvd.compression.Compressor.compress(torch.ones(1))
    model = network()
    optimizer = distributed(model, compression=Halved, backward_passes_per_step=2, op=op)
    assert (optimizer.backward_passes_per_step, optimizer.op) == (2, op)
    assert optimizer.process_set is hvd.global_process_set
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()


def test_with_a_data_loader(worker):
    data = torch.utils.data.TensorDataset(torch.arange(20))
    sampler = hvd.elastic.ElasticSampler(data, seed=3)
    assert isinstance(sampler, torch.utils.data.Sampler)
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
