"""hvd.torch's SyncBatchNorm, Adasum and what else Horovod's scripts use, in jobs of processes."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import hvd  # noqa: E402
from conftest import PACKAGE, PATIENCE  # noqa: E402


def test_batch_norm_and_adasum():
    ranks, lines = 3, []
    try:
        hvd.driver.run(
            [sys.executable, str(Path(__file__).with_name("torch_horovod_worker.py"))], np=ranks,
            hosts=f"localhost:{ranks}", restart=False, environment={"PYTHONPATH": str(PACKAGE)},
            timeout=280 * PATIENCE, output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    except hvd.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines.count("fine") == ranks, "\n".join(lines)
