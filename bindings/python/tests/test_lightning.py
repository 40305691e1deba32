"""hvd.lightning with the real Trainer, on two ranks."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

if not any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning"))):
    pytest.skip("Lightning is not installed", allow_module_level=True)

import hvd  # noqa: E402
from conftest import PACKAGE, PATIENCE  # noqa: E402


def run(worker, directory):
    lines = []
    try:
        hvd.driver.run([sys.executable, str(worker), str(directory)], np=2, hosts="localhost:2", restart=False,
                       environment={"PYTHONPATH": str(PACKAGE)}, timeout=280 * PATIENCE,
                       output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    except hvd.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines.count("fine") == 2, "\n".join(lines)


def test_training_with_two_ranks(tmp_path):
    run(Path(__file__).with_name("lightning_worker.py"), tmp_path)


# What the page's block leaves out.
BEFORE = """
import os, sys
import torch
try:
    from lightning.pytorch import LightningModule, Trainer
except ImportError:
    from pytorch_lightning import LightningModule, Trainer
import hvd.torch as hvd
hvd.init()
os.chdir(sys.argv[1])

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

"""
AFTER = """
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4))
everybody = hvd.allgather(model.layer.weight.detach())
assert trainer.world_size == hvd.size() == 2 and torch.equal(everybody[0], everybody[1])
print("fine", flush=True)
hvd.shutdown()
"""


def test_the_page_s_example(tmp_path):
    page = (PACKAGE.parents[1] / "docs" / "horovod.md").read_text()
    (block, ) = re.findall(r"```python\n(from hvd\.lightning import.*?)```", page, re.S)
    script = tmp_path / "example.py"
    script.write_text(BEFORE + block + AFTER)
    run(script, tmp_path)
