"""hvd.lightning with the real Trainer, on two ranks."""

import importlib.util
import sys
from pathlib import Path

import pytest

if not any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning"))):
    pytest.skip("Lightning is not installed", allow_module_level=True)

import hvd  # noqa: E402
from conftest import PACKAGE, PATIENCE  # noqa: E402


def test_training_with_two_ranks(tmp_path):
    lines = []
    try:
        hvd.driver.run([sys.executable,
                        str(Path(__file__).with_name("lightning_worker.py")),
                        str(tmp_path)], np=2, hosts="localhost:2", restart=False,
                       environment={"PYTHONPATH": str(PACKAGE)}, timeout=280 * PATIENCE,
                       output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    except hvd.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines.count("fine") == 2, "\n".join(lines)
