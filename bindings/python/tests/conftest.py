"""Jobs for the tests: contexts in threads of this process, scripts in processes of their own."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))
for name in [name for name in os.environ if name.startswith("HVD_") and name not in (
        "HVD_LIBRARY", "HVD_PLUGIN_PATH", "HVD_TEST_PATIENCE")]:
    del os.environ[name]

import hvd  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))
SECRET = "a-secret-of-the-python-tests-0123456789"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def place(rank, size, port):
    """Options of a worker in a job without a driver."""
    return {"rank": rank, "size": size, "rendezvous": f"127.0.0.1:{port}", "secret": SECRET,
            "init_timeout": 30 * PATIENCE, "connect_timeout": 20 * PATIENCE, "operation_timeout": 30 * PATIENCE,
            "shutdown_timeout": 20 * PATIENCE}


@pytest.fixture
def job():
    """job(size, function): function(context) on each rank, in threads; their results in rank order."""

    def run(size, function, **options):
        port, results, problems = free_port(), [None] * size, []

        def work(rank):
            try:
                with hvd.Context(**{**place(rank, size, port), **options}) as context:
                    results[rank] = function(context)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60 * PATIENCE)
            assert not thread.is_alive(), "a rank did not come to its end"
        if problems:  # rather the cause than what it did to the others
            raise min(problems, key=lambda problem: isinstance(problem, hvd.HorovodInternalError))
        return results

    return run


@pytest.fixture
def alone():
    """A worker that is alone, as the package's default context."""
    context = hvd.init()
    yield context
    context.shutdown()
    context.close()


@pytest.fixture
def python():
    """python(source, *arguments, environment=...): a script in a process of its own."""

    def run(source, *arguments, environment=None, timeout=60, check=True):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
                              env={**os.environ, "PYTHONPATH": str(PACKAGE), **(environment or {})},
                              capture_output=True, text=True, timeout=timeout * PATIENCE)
        assert not check or done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
