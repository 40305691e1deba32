"""The driver from Python: own discovery, own launch, output, failure, stop."""

import json
import os
import subprocess
import sys
import threading

import pytest

import hvd
from conftest import PACKAGE, PATIENCE

SUM = "import hvd; hvd.init(); print('sum', list(hvd.allreduce(bytearray([1 + hvd.rank()]), op=hvd.Sum)))"
# Enough for workers to join on a busy machine; where none ever joins, the job is given up soon.
QUICK = {"restart": False, "stop_grace": 1}
HOPELESS = {**QUICK, "elastic_timeout": 1, "join_settle": 0.1}


def worker(source):
    return [sys.executable, "-c", source]


def test_a_job_with_output(capfd):
    lines = []
    hvd.driver.run(
        worker(SUM), np=2, hosts="localhost:2", environment={"PYTHONPATH": str(PACKAGE)},
        output=lambda rank, host, slot, is_stderr, line: lines.append(
            (host, slot, is_stderr, line)), timeout=60 * PATIENCE)
    assert sorted(lines) == [("localhost", slot, False, "sum [3]") for slot in (0, 1)]


def test_own_discovery():
    asked = []

    def discover():
        asked.append(1)
        return {"localhost": 2}

    lines = []
    with hvd.driver.Driver(worker(SUM), np=2, discover=discover, environment={"PYTHONPATH": str(PACKAGE)},
                           output=lambda *line: lines.append(line[-1])) as driver:
        assert driver.status().phase == hvd.driver.Phase.NEW
        driver.start()
        driver.wait(60 * PATIENCE)
        status = driver.status()
    assert asked and lines == ["sum [3]"] * 2
    assert status.phase == hvd.driver.Phase.SUCCEEDED and status.generation == 1


def test_own_launcher():
    class Processes(hvd.driver.Launcher):
        started = []

        def start(self, request):
            assert request.host in ("a", "b") and request.slot == 0 and "HVD_SECRET" in request.environment
            process = subprocess.Popen(worker(SUM),
                                       env={**os.environ, **request.environment, "PYTHONPATH": str(PACKAGE)},
                                       stdout=subprocess.PIPE, text=True)
            self.started.append(process)
            threading.Thread(target=self.watch, args=(request.worker, process)).start()

        def stop(self, worker, force):
            for process in self.started:
                process.kill()

        def watch(self, number, process):
            self.output = process.communicate()[0]
            driver.worker_exited(number, process.returncode)

    launcher = Processes()
    with hvd.driver.Driver(launcher=launcher, np=2, hosts="a:1,b:1", **QUICK) as driver:
        driver.start()
        driver.wait(60 * PATIENCE)
    assert len(launcher.started) == 2 and launcher.output == "sum [3]\n"


def test_why_a_job_failed():
    with hvd.driver.Driver(worker("raise SystemExit(3)"), np=1, hosts="localhost:1", log=lambda *line: None,
                           **HOPELESS) as driver:
        driver.start()
        with pytest.raises(hvd.JobFailedError) as caught:
            driver.wait(60 * PATIENCE)
        assert driver.status().sentence in str(caught.value)


def test_operators_words(tmp_path):
    """A job is described, drained and scaled from within its driver's process and from elsewhere."""
    address, log = tmp_path / "address", lambda *line: None
    with hvd.driver.Driver(worker("import hvd, time; hvd.init(); time.sleep(100)"), np=1, max_np=2,
                           hosts="localhost:2", environment={"PYTHONPATH": str(PACKAGE)},
                           address_file=str(address), log=log, **QUICK) as driver:
        driver.start()
        assert json.loads(driver.describe(hvd.driver.Format.JSON))["phase"] in ("forming", "running")
        assert "localhost" in driver.describe() and driver.describe(
            hvd.driver.Format.OPENMETRICS).endswith("# EOF\n")
        assert json.loads(hvd.driver.command("status", "json", address_file=str(address), log=log))["hosts"]
        with pytest.raises(hvd.InvalidError, match="elsewhere"):
            driver.drain("elsewhere")
        with pytest.raises(hvd.InvalidError, match="localhost"):
            driver.undrain("localhost")
        with pytest.raises(hvd.InvalidError, match="7"):
            driver.scale(7)
        with pytest.raises(hvd.InvalidError, match="dance"):
            hvd.driver.command("dance", address_file=str(address), log=log)
        with pytest.raises(ValueError):
            driver.describe(9)
        driver.scale(2)
        driver.stop("the test has seen enough")


def test_stop_and_timeouts():
    with hvd.driver.Driver(worker("import time; time.sleep(100)"), np=1, hosts="localhost:1",
                           log=lambda *line: None, **QUICK) as driver:
        driver.start()
        with pytest.raises(TimeoutError):
            driver.wait(0.1)
        driver.stop("the test has seen enough")
        with pytest.raises(hvd.JobFailedError, match="seen enough"):
            driver.wait(30 * PATIENCE)


@pytest.mark.parametrize("make, match", [
    (lambda: hvd.driver.Driver([]), "at least the program"), (lambda: hvd.driver.Driver("true"), "list"),
    (lambda: hvd.driver.Driver(["true"], nonsense=1), "nonsense"),
    (lambda: hvd.driver.Driver(["a\0b"]), "NUL"),
    (lambda: hvd.driver.Driver(["true"]).start(), "no hosts"),
    (lambda: hvd.driver.Driver(hosts="localhost:1").start(), "no command"),
])
def test_wrong_input(make, match):
    with pytest.raises(hvd.InvalidError, match=match):
        make()


def test_callbacks_that_raise(capsys):
    def discover():
        raise KeyError("no hosts today")

    with hvd.driver.Driver(["true"], np=1, discover=discover, log=lambda *line: None, **QUICK) as driver:
        with pytest.raises(hvd.UnavailableError):
            driver.start()
    assert "no hosts today" in capsys.readouterr().err

    class Broken(hvd.driver.Launcher):
        def start(self, request):
            raise OSError("no such machine")

    with hvd.driver.Driver(launcher=Broken(), np=1, hosts="a:1", log=lambda *line: None,
                           **HOPELESS) as driver:
        driver.start()
        with pytest.raises(hvd.JobFailedError):
            driver.wait(60 * PATIENCE)


def test_a_driver_that_is_closed_or_of_another_process():
    driver = hvd.driver.Driver(["true"], np=1, hosts="localhost:1")
    child = os.fork()
    if child == 0:
        try:
            driver.start()
        except hvd.InvalidError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    driver.close()
    driver.close()
    for call in (driver.start, driver.status, driver.stop, driver.wait):
        with pytest.raises(hvd.ClosedError):
            call()


def test_a_callback_that_exits_has_failed():
    """sys.exit() in one is no success, and no host is none that was found."""
    for problem in (SystemExit, KeyboardInterrupt):

        def discover():
            raise problem(3)

        with hvd.driver.Driver(worker("pass"), np=1, discover=discover, **HOPELESS) as driver:
            with pytest.raises(hvd.UnavailableError, match="discovery callback"):
                driver.start()
