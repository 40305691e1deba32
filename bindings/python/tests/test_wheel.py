"""The wheel carries all that a job needs: installed in an environment of its own, it runs one."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from conftest import PACKAGE, PATIENCE

BUILD = os.environ.get("HVD_TEST_BUILD")
pytestmark = pytest.mark.skipif(not BUILD, reason="HVD_TEST_BUILD names no build tree")


def test_a_job_from_the_wheel(tmp_path):
    run = subprocess.run([sys.executable, "-B", PACKAGE / "wheel.py", BUILD, tmp_path], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    wheel = run.stdout.strip()
    try:
        venv.create(tmp_path / "env", with_pip=True)
    except subprocess.CalledProcessError:
        pytest.skip("no pip for new environments (python3-venv)")
    binaries = tmp_path / "env" / "bin"
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("HVD_LIBRARY", "HVD_PLUGIN_PATH", "PYTHONPATH")}
    subprocess.run(
        [binaries / "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", "-q", wheel],
        check=True, env=environment)
    script = tmp_path / "worker.py"
    script.write_text("import hvd\nhvd.init()\n"
                      "print(hvd.library_path, bytes(hvd.allgather(b'x')), hvd.backend().name)\n")
    done = subprocess.run(
        [binaries / "hvdrun", "-np", "2", "-H", "localhost:2", "--", binaries / "python", script],
        env=environment, capture_output=True, text=True, timeout=60 * PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "b'xx'" in line]
    assert len(lines) == 2 and all(str(tmp_path / "env") in line and "_native" in line
                                   for line in lines), done.stdout
    assert not Path(PACKAGE / "hvd" / "_native").exists()
