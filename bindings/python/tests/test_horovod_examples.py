"""Programs in the shape of Horovod's elastic examples, through a kill and a join, with the package `horovod`
of this project."""

import importlib.util
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from test_horovod_package import horovodrun

WORKER = Path(__file__).with_name("horovod_examples.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1"}


@pytest.mark.parametrize("framework, module, rate", [
    ("pytorch", "torch", 0.01), ("tensorflow2", "tensorflow", 0.001), ("keras", "tensorflow", 0.001)])
def test_through_a_kill_and_a_join(framework, module, rate, tmp_path):
    """Both end with the same weights, and with the learning rate of two: what the reset callback sets reaches
    the newcomer."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    hosts, once = tmp_path / "discover.sh", tmp_path / "once"
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(hosts.stat().st_mode | stat.S_IEXEC)
    done = horovodrun("-np", 2, "--min-np", 1, "--max-np", 2, "--host-discovery-script", hosts,
                      sys.executable, WORKER, framework, once, **QUIET)
    assert done.returncode == 0 and os.path.exists(once), done.stdout + done.stderr
    assert len(re.findall(rf"trained \d+ 2 {rate:.6f}", done.stdout)) == 2, done.stdout + done.stderr
