"""Jobs for the tests: contexts in threads of this process, scripts in processes of their own."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))
for name in [name for name in os.environ if name.startswith("HVD_") and name not in (
        "HVD_LIBRARY", "HVD_PLUGIN_PATH", "HVD_TEST_PATIENCE", "HVD_TEST_BUILD")]:
    del os.environ[name]

import hvd  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))


class Threads(hvd.driver.Launcher):
    """Starts workers as threads of this process: function(context) in each."""

    def __init__(self, function, options):
        self.function, self.options = function, options
        self.threads, self.results, self.problems = [], {}, []
        self.started = threading.Semaphore(0)

    def start(self, request):
        thread = threading.Thread(target=self.work, args=(request,), daemon=True)
        self.threads.append(thread)
        thread.start()
        self.started.release()

    def stop(self, worker, force):
        pass

    def work(self, request):
        options = {
            key[4:].lower(): value for key, value in request.environment.items() if key.startswith("HVD_")
        }
        try:
            with hvd.Context(**{**options, **self.options}) as context:
                rank = context.rank()
                self.results[rank] = self.function(context)
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            self.driver.worker_exited(request.worker, 0)


@pytest.fixture
def job():
    """job(size, function): function(context) on each rank, in threads; their results in rank order.

    Hosts are discovered, so that who has lost a peer may wait for others to come: with fixed ones the job
    would fail.
    """

    def run(size, function, **options):
        launcher = Threads(
            function, {
                "init_timeout": 30 * PATIENCE, "connect_timeout": 20 * PATIENCE,
                "operation_timeout": 30 * PATIENCE, "shutdown_timeout": 20 * PATIENCE, **options
            })
        with hvd.driver.Driver(launcher=launcher, np=size, min_np=size, max_np=size,
                               discover=lambda: {"here": size}, restart=False,
                               log=lambda level, line: None) as driver:
            launcher.driver = driver
            driver.start()
            for _ in range(size):
                assert launcher.started.acquire(timeout=30 * PATIENCE), "the driver did not start all workers"
            for thread in launcher.threads:
                thread.join(60 * PATIENCE)
                assert not thread.is_alive(), "a rank did not come to its end"
        if launcher.problems:  # rather the cause than what it did to the others
            raise min(launcher.problems, key=lambda problem: isinstance(problem, hvd.HorovodInternalError))
        return [launcher.results[rank] for rank in range(size)]

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
