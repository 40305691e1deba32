"""A Horovod Elastic script for PyTorch as its users write them: for libhvd only the import below is another
one.

Rank 1 waits once, in test_jobs.py, to be killed.
"""

import json
import os
import signal
import sys

import torch
import torch.nn.functional as F

import hvd.torch as hvd  # import horovod.torch as hvd

hvd.init()
torch.manual_seed(42)
batch_size, epochs = 8, 3
inputs = torch.randn(240, 6, generator=torch.Generator().manual_seed(7))
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
dataset = torch.utils.data.TensorDataset(inputs, labels)
train_sampler = hvd.elastic.ElasticSampler(dataset)
train_loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=train_sampler)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
base_rate = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=base_rate * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                     compression=hvd.Compression.none, op=hvd.Average)


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = base_rate * hvd.size()


def wait_to_be_killed(state):
    if state.epoch == 1 and state.batch == 3 and hvd.rank() == 1 and hvd.generation() == 1:
        print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
        signal.pause()


@hvd.elastic.run
def full_train(state):
    while state.epoch < epochs:
        model.train()
        batch_offset = state.batch
        for batch_idx, (data, target) in enumerate(train_loader):
            state.batch = batch_offset + batch_idx
            wait_to_be_killed(state)
            if state.batch % 2 == 0:
                state.commit()
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(data), target)
            loss.backward()
            optimizer.step()
            state.train_sampler.record_batch(batch_idx, batch_size)
        correct = ((model(inputs) > 0).float() == labels).float().mean()
        state.accuracy = hvd.allreduce(correct, name="accuracy").item()
        state.epoch += 1
        state.batch = 0
        state.train_sampler.set_epoch(state.epoch)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, train_sampler=train_sampler, epoch=0, batch=0, accuracy=0.0)
state.register_reset_callbacks([on_state_reset])
full_train(state)
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
agree = torch.equal(hvd.allreduce(weights, op=hvd.Min), hvd.allreduce(weights, op=hvd.Max))
print(
    json.dumps({
        "event": "end", "accuracy": state.accuracy, "agree": agree, "epoch": state.epoch, "size": hvd.size(),
        "rate": optimizer.param_groups[0]["lr"], "recoveries": len(hvd.recoveries())
    }), flush=True)
