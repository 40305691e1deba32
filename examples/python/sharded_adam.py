"""A PyTorch model whose Adam moments are sharded over the ranks (ZeRO, stage 1), with one copy on a peer:

    hvdrun -np 4 --min-np 2 -H localhost:4 --set restart=false python3 sharded_adam.py 40 17

trains 40 steps, and rank 1 kills itself before the 17th. What is printed at the end is the same with and
without that, bit for bit: a batch is eight micro-batches, whose gradients are summed in their order whoever
computed them.
"""

import hashlib
import os
import signal
import sys

import torch

import hvd
from hvd import elastic

MICRO_BATCHES, SAMPLES = 8, 16


class ShardedAdam:
    """Adam (Kingma and Ba, 2015) on flat parameters: each rank keeps and updates one range of them."""

    def __init__(self, state, parameters, lr=3e-3, betas=(0.9, 0.999), eps=1e-8):
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        total = sum(p.numel() for p in self.parameters)
        self.m = state.add_shard("adam.m", total, allocate=torch.zeros)
        self.v = state.add_shard("adam.v", total, allocate=torch.zeros)

    @torch.no_grad()
    def step(self, gradient, t):
        m, v, offset = self.m.array, self.v.array, self.m.offset  # others after a change of ranks
        flat = torch.nn.utils.parameters_to_vector(self.parameters)
        mine, g = flat[offset:offset + len(m)].clone(), gradient[offset:offset + len(m)]
        m.mul_(self.betas[0]).add_(g, alpha=1 - self.betas[0])
        v.mul_(self.betas[1]).addcmul_(g, g, value=1 - self.betas[1])
        mine -= self.lr * (m / (1 - self.betas[0] ** t)) / ((v / (1 - self.betas[1] ** t)).sqrt() + self.eps)
        whole = torch.as_tensor(hvd.allgather(mine.numpy(), name="parameters"))
        torch.nn.utils.vector_to_parameters(whole, self.parameters)


def micro_batch(step, number):
    random = torch.Generator().manual_seed(step * MICRO_BATCHES + number)
    labels = torch.randint(10, (SAMPLES,), generator=random)
    centres = ((labels[:, None] * 7 + torch.arange(32) * 3) % 5 - 2) * 0.5
    return centres + torch.rand(SAMPLES, 32, generator=random) * 2 - 1, labels


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    dies_before = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    torch.set_num_threads(1)
    torch.manual_seed(1)
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    parameters = list(model.parameters())
    state = elastic.ArrayState(weights=[p.data for p in parameters], step=0)
    adam = ShardedAdam(state, parameters)

    def gradient_of(number):
        x, labels = micro_batch(state.step, number)
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        gradients = torch.autograd.grad(loss, parameters)
        return torch.cat([g.reshape(-1) for g in gradients] + [loss.detach().reshape(1)])

    @elastic.run
    def train(state):
        loss = 0.0
        while state.step < steps:
            if state.step == dies_before and hvd.generation() == 1 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            first, count = elastic.shard_range(MICRO_BATCHES, hvd.rank(), hvd.size())
            rows = [gradient_of(first + i) for i in range(count)]
            mine = torch.stack(rows) if rows else torch.zeros(0, sum(p.numel() for p in parameters) + 1)
            every = torch.as_tensor(hvd.allgather(mine.numpy(), name="gradients"))
            total = torch.zeros_like(every[0])
            for row in every:  # in the order of micro-batches
                total += row
            total /= MICRO_BATCHES
            loss = float(total[-1])
            adam.step(total[:-1], state.step + 1)
            state.step += 1
            state.commit()
        return loss

    loss = train(state)
    weights = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().tobytes()
    print(
        f"rank {hvd.rank()} of {hvd.size()}: loss {loss:.4f}, weights {hashlib.sha256(weights).hexdigest()[:16]}",
        flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
