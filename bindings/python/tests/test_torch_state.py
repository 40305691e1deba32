"""TorchState: commits, restores and syncs of modules, optimizers and values; commits that hide."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch_network import network, run_ranks, train, worker  # noqa: E402, F401: a fixture

import hvd as plain  # noqa: E402
import hvd.torch as hvd  # noqa: E402


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


def test_what_the_optimizer_lends_is_copied_when_commit_returns(worker):
    model = torch.nn.Linear(700, 700)  # moments of more than a piece
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = hvd.elastic.TorchState(model, optimizer)
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


def on_gpu(number, values):
    """A double of a tensor on that GPU: it says so, and its values are in the host's memory."""
    kind = type("OnGpu", (torch.Tensor, ), {
        "is_cpu": False, "device": torch.device("cuda", number), "detach": lambda self: self,
        "cpu": lambda self: self.as_subclass(torch.Tensor),
        "__torch_function__": torch._C._disabled_torch_function_impl
    })
    return values.as_subclass(kind)


def test_the_number_of_a_gpu_is_no_part_of_a_state():
    """Ranks whose optimizers are alike have the same bytes, and load them wherever theirs are."""
    from hvd.torch.functions import in_host_memory, load_optimizer_state, optimizer_state

    def optimizer_on(number):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        optimizer.state[weight]["momentum_buffer"] = on_gpu(number, torch.tensor([3.0, 4.0]))
        optimizer.param_groups[0]["lr"] = on_gpu(number, torch.tensor(0.5))
        return optimizer

    bytes_of = plain.JsonCodec().dumps
    given = bytes_of(optimizer_state(optimizer_on(0)))
    assert given == bytes_of(optimizer_state(optimizer_on(1))) and b"cuda" not in given
    nested = {"a": [(on_gpu(0, torch.ones(1)), 1)]}
    assert b"cuda" not in bytes_of(in_host_memory(nested))
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device="meta"))])
    other.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")
    load_optimizer_state(other, plain.JsonCodec().loads(given))
    moments, = other.state.values()
    assert moments["momentum_buffer"].device.type == other.param_groups[0]["lr"].device.type == "meta"
    with pytest.raises(ValueError, match="parameter group"):
        load_optimizer_state(other, {"state": {}, "param_groups": []})


def test_tensors_of_a_state_are_committed_as_in_host_memory(worker, monkeypatch):
    seen = []
    dumps = plain.JsonCodec.pieces
    monkeypatch.setattr(plain.JsonCodec, "pieces",
                        lambda self, thing: seen.append(thing) or dumps(self, thing))
    state = hvd.elastic.TorchState(best=on_gpu(1, torch.tensor([1.0, 2.0])))
    state.commit()
    assert type(seen[-1]) is torch.Tensor and seen[-1].is_cpu


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


def test_a_hidden_commit_looks_at_memory_that_was_set(worker):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=True)
    old, new = model.weight, torch.nn.Parameter(torch.ones(2, 2))
    state.commit()
    optimizer.step()
    model.weight = new
    state.set_array("model.weight", new)
    state.commit()
    with torch.no_grad():
        old.zero_()  # nobody's
    optimizer.step()
    state.commit()
    with torch.no_grad():
        new.zero_()
    with pytest.raises(hvd.InvalidError, match="'model.weight' was written between"):
        optimizer.step()
    state.set_array("model.weight", torch.ones(2, 2).numpy())  # which has no versions
    state.commit()
    optimizer.step()
    assert not state._begun


def test_moments_are_copied_during_a_hidden_commit(worker):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    state = hvd.elastic.TorchState(model, optimizer, hidden_commits=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, 2)
    assert state._memory["optimizer"].until_end
    saved = hvd.elastic._saved(optimizer)
    assert saved["param_groups"][0]["lr"] is not optimizer.param_groups[0]["lr"]
    assert saved["state"][0]["exp_avg"] is optimizer.state[model[0].weight]["exp_avg"]
    for _ in range(3):
        state.commit()
        kept = copy.deepcopy(optimizer.state_dict())
        assert len(state._problem.begun) > 0 and state._problem.lent == []
        schedule.step()  # which writes the rate in place
        gc.collect()
        train(model, optimizer, 1)
        assert state._problem.begun == []
        state.restore()
        found = optimizer.state_dict()
        assert found["param_groups"][0]["lr"] == kept["param_groups"][0]["lr"]
        assert all(torch.equal(found["state"][i][key], kept["state"][i][key]) for i in kept["state"]
                   for key in ("step", "exp_avg", "exp_avg_sq"))
        optimizer.step()
    state.commit()
    optimizer.state[model[0].bias]["exp_avg"].zero_()
    with pytest.raises(hvd.InvalidError, match="'optimizer.exp_avg' was written between"):
        optimizer.step()
    optimizer.step()
    state.commit()
    gone = weakref.ref(optimizer.state[model[0].weight]["exp_avg"])
    state.optimizer = optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del schedule, found  # which hold the one before
    gc.collect()
    assert gone() is not None
    state.commit()
    assert gone() is None


def test_check_commits_looks_at_what_is_lent_until_the_end(python):
    python("""
import torch, hvd
context = hvd.init(check_commits=True)
state = hvd.elastic.State()
array, other = torch.zeros(1 << 20), torch.zeros(1 << 20)
state.add_object("a", lambda: array, lambda new: None, until_end=True)
state.add_object("b", lambda: other, lambda new: None)
state.commit_begin()
other[:] = 1
state.commit_end()
state.commit_begin()
array[7] = 1
try:
    state.commit_end()
except hvd.InvalidError as error:
    assert "'a'" in str(error) and "was written between" in str(error), error
else:
    raise SystemExit("the write was not found")
hvd.shutdown()
""")


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
