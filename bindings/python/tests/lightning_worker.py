"""A worker of test_lightning.py: two ranks train a model with Lightning, and a process alone does the same.
"""

import logging
import sys
import warnings

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

import hvd.torch as hvd
from hvd.lightning import HvdStrategy

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.manual_seed(1)
inputs = torch.randn(32, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Model(pl.LightningModule):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(4, 1)
        self.seen = 0

    def training_step(self, batch, _):
        self.seen += len(batch[0])
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


def train(model, strategy, batch, sampler=None, **options):
    trainer = pl.Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=2, logger=False,
                         barebones=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False, gradient_clip_val=0.5, default_root_dir=sys.argv[1],
                         **options)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=batch, sampler=sampler))
    return trainer


mine, alone = Model(rank), Model(0)  # other weights on each rank: rank 0's count
parts = torch.utils.data.DistributedSampler(data, size, rank, shuffle=False)
trainer = train(mine, HvdStrategy(), 4, parts)
assert (trainer.world_size, trainer.global_rank,
        mine.seen) == (size, rank, 2 * 32 // size), (trainer.world_size, mine.seen)
train(alone, "auto", 4 * size)
assert torch.allclose(mine.layer.weight, alone.layer.weight,
                      atol=1e-5), (mine.layer.weight, alone.layer.weight)
assert "loss" in trainer.callback_metrics
again = Model(0)
train(again, HvdStrategy(compression=hvd.Compression.fp16), 2, parts, accumulate_grad_batches=2)
assert torch.allclose(again.layer.weight, alone.layer.weight, atol=1e-2)
dealt = Model(0)
train(dealt, HvdStrategy(), 4)  # the Trainer deals the data out, shuffled
assert dealt.seen == 2 * 32 // size
strategy = HvdStrategy()
assert strategy.reduce(rank + 1,
                       reduce_op="sum") == size * (size + 1) // 2 and strategy.reduce("text") == "text"
assert strategy.all_gather(torch.tensor([rank])).tolist() == [[r] for r in range(size)]
assert strategy.broadcast({"a": rank}, 1) == {"a": 1}
assert strategy.reduce_boolean_decision(rank == 0) is False and strategy.reduce_boolean_decision(
    rank == 0, all=False) is True
try:
    strategy.reduce(1, reduce_op="median")
    raise SystemExit("taken")
except hvd.InvalidError as error:
    assert "median" in str(error)
print("fine", flush=True)
hvd.shutdown()
