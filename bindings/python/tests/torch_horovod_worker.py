"""A worker of test_torch_horovod.py: what horovod.torch has besides plain collectives, on three ranks."""

import copy

import torch

import hvd.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()


def close(found, expected, what):
    assert torch.allclose(found, expected, atol=1e-5), (what, found, expected)


# SyncBatchNorm: ranks with 2, 3, 4 samples against one batch norm over all nine.
generator = torch.Generator().manual_seed(7)
whole = torch.randn(9, 3, 5, generator=generator) * 3 + 1
upstream = torch.randn(9, 3, 5, generator=generator)
first = [0, 2, 5][rank]
rows = slice(first, first + 2 + rank)
plain = torch.nn.BatchNorm1d(3)
with torch.no_grad():
    plain.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
    plain.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
sync = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(copy.deepcopy(plain)))[0]
assert isinstance(sync, hvd.SyncBatchNorm) and sync.state_dict().keys() == plain.state_dict().keys()
for _ in range(2):
    x, y = whole.clone().requires_grad_(), whole[rows].clone().requires_grad_()
    expected, found = plain(x), sync(y)
    close(found, expected[rows], "normalized")
    expected.backward(upstream)
    found.backward(upstream[rows])
    close(y.grad, x.grad[rows], "gradient of the input")
for name in ("weight", "bias"):
    close(hvd.allreduce(getattr(sync, name).grad, op=hvd.Sum), getattr(plain, name).grad, name)
for name in ("running_mean", "running_var", "num_batches_tracked"):
    close(getattr(sync, name), getattr(plain, name), name)
empty = hvd.SyncBatchNorm(2)
close(empty(torch.ones(2 * (rank > 0), 2, 1)), torch.zeros(2 * (rank > 0), 2, 1), "a rank without samples")
sync.eval(), plain.eval()
close(sync(whole), plain(whole), "eval")
try:
    sync(torch.ones(4, 2, 5))
    raise SystemExit("taken")
except hvd.InvalidError as error:
    assert "expected 3 channels, and not 2" in str(error)

# Adasum: orthogonal vectors add up, parallel ones are averaged; an optimizer's steps are combined.
mine = torch.zeros(size)
mine[rank] = rank + 1.0
close(hvd.allreduce(mine, op=hvd.Adasum), torch.arange(1.0, size + 1), "orthogonal")
for dtype in (torch.float16, torch.bfloat16, torch.float64):
    alike, zero = hvd.grouped_allreduce([torch.full(
        (5, ), 3.0, dtype=dtype), torch.zeros(2, 2)], op=hvd.Adasum)
    assert alike.dtype == dtype and alike.tolist() == [3.0] * 5 and zero.tolist() == [[0, 0], [0, 0]], alike
model = torch.nn.Linear(size, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(),
                                     op=hvd.Adasum)
model(mine).sum().backward()
optimizer.step()
close(model.weight.detach()[0], 1 - 0.5 * torch.arange(1.0, size + 1), "a step with Adasum")
try:
    hvd.allreduce(torch.ones(2 + rank), name="differs", op=hvd.Adasum)
    raise SystemExit("taken")
except hvd.MismatchError as error:
    assert "'differs'" in str(error) and "['float32', 2]" in str(error)

# Passes that are set later are as those that were given.
found = []
for given in (True, False):
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    passes = {"backward_passes_per_step": 2} if given else {}
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), **passes)
    if not given:
        optimizer.set_backward_passes_per_step(2)
    for step in range(2):
        for part in (1.0, 2.0):
            model(torch.full((1, 2), part * (rank + 1))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(model.weight.detach().clone())
close(found[0], 1 - torch.full((1, 2), 3 * (size + 1) / 2), "the sum of two passes, the mean of the ranks")
assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3]), found
for wrong in (0, "2"):
    try:
        optimizer.set_backward_passes_per_step(wrong)
        raise SystemExit("taken")
    except hvd.InvalidError as error:
        assert "backward_passes_per_step" in str(error), error

# An optimizer that has not stepped yet: gradients are there after its broadcast, as in Horovod.
hvd.broadcast_optimizer_state(
    torch.optim.SGD(fresh := list(torch.nn.Linear(2, 2).parameters()), momentum=0.9, lr=1.0))
assert all(p.grad is not None and not p.grad.any() for p in fresh)
print("fine", flush=True)
hvd.shutdown()
