"""A script for Horovod as a contender of horovod_bench: the package `horovod` that it finds decides whose
ranks they are. It serves the commands of ranks.c, with operations of its own, or trains elastically."""

import sys

import horovod.torch as hvd
import torch

from served import Steps, by_name, serve

GROUP, VARIABLES = 200, 160


def mlp(width):
    return torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                               torch.nn.ReLU(), torch.nn.Linear(width, 10))


def allreduce(size):
    tensor = torch.ones(size // 4)

    def call(turn):
        hvd.allreduce_(tensor, name="allreduce", op=hvd.Sum)

    return call


def grouped(size):
    tensors = [torch.ones(size // 4 // GROUP) for _ in range(GROUP)]

    def call(turn):
        hvd.grouped_allreduce_(tensors, name="grouped", op=hvd.Average)

    return call


def variables(size):
    tensors = {
        f"variable {i}": torch.full((size // 4 // VARIABLES, ), float(hvd.rank()))
        for i in range(VARIABLES)
    }

    def call(turn):
        hvd.broadcast_parameters(tensors, root_rank=0)
        assert tensors["variable 0"][0] == 0

    return call


def step(width):
    torch.manual_seed(1)
    model = mlp(width)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                         named_parameters=model.named_parameters())
    inputs, targets = torch.randn(32, 784), torch.randint(0, 10, (32, ))

    def call(turn):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return call


def commit(width):
    model = mlp(width)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    return lambda turn: state.commit()


def train_elastically():
    steps = Steps()
    model = mlp(256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    inputs, targets = torch.randn(32, 784), torch.randint(0, 10, (32, ))

    @hvd.elastic.run
    def train(state):
        while True:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            state.batch += 1
            steps.made(hvd.size(), hvd.rank())
            stop = torch.tensor([float(steps.enough())])
            if hvd.allreduce(stop, name="stop", op=hvd.Sum).item():
                return
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))


def main():
    torch.set_num_threads(1)
    hvd.init()
    if sys.argv[1:] == ["elastic"]:
        train_elastically()
    else:
        serve(hvd.rank(), hvd.barrier, by_name(allreduce, grouped, variables, step, commit))
    hvd.shutdown()


if __name__ == "__main__":
    main()
