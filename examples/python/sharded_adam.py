"""A PyTorch model whose Adam moments are sharded over the ranks (ZeRO, stage 1), with one copy on a peer:

    hvdrun -np 4 --min-np 2 -H localhost:4 --set restart=false python3 sharded_adam.py 400 150

trains Fashion-MNIST for 400 steps, and rank 1 kills itself before it commits the 150th, which the others then
take again. What is printed at the end is the same with and without that, accuracy and weights bit for bit: a
batch is eight micro-batches, whose gradients are summed in their order whoever computed them.
"""

import gzip
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

    def __init__(self, state, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
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
        for p, new in zip(self.parameters, whole.split([p.numel() for p in self.parameters])):
            p.copy_(new.view_as(p))  # in place: the state commits and restores this memory


def read_images(part):
    """Pixels from -0.5 to 0.5, one sample a row, and labels."""
    folder = os.environ.get("HVD_FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist")
    with gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz") as file:
        pixels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=16)
    with gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=8).long()
    return pixels.reshape(len(labels), -1).float() / 255 - 0.5, labels


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = read_images("train")
    hvd.init()
    layers = torch.nn.Linear(images.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    model = torch.nn.Sequential(*layers)
    parameters = list(model.parameters())
    state = elastic.ArrayState(weights=parameters, step=0)
    adam = ShardedAdam(state, parameters)

    def gradient_of(number):  # of samples at random, the same whoever asks
        random = torch.Generator().manual_seed(state.step * MICRO_BATCHES + number)
        some = torch.randint(len(labels), (SAMPLES,), generator=random)
        loss = torch.nn.functional.cross_entropy(model(images[some]), labels[some])
        gradients = torch.autograd.grad(loss, parameters)
        return torch.cat([g.reshape(-1) for g in gradients] + [loss.detach().reshape(1)])

    @elastic.run
    def train(state):
        loss = 0.0
        while state.step < steps:
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
            if state.step == dies_at and hvd.generation() == 1 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
        return loss

    loss = train(state)
    test, expected = read_images("t10k")
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == expected).float().mean())
    weights = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().tobytes()
    end = f"loss {loss:.4f}, test accuracy {accuracy:.4f}, weights {hashlib.sha256(weights).hexdigest()[:16]}"
    print(f"rank {hvd.rank()} of {hvd.size()}: {end}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
