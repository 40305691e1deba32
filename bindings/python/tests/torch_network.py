"""A network, how it is trained, and jobs of small scripts: for PyTorch's tests."""

import sys

import pytest
import torch

import hvd as plain
from conftest import PACKAGE, PATIENCE


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
