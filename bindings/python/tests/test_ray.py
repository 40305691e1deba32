"""hvd.ray on a Ray cluster of this machine."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])

import hvd  # noqa: E402
import job_functions  # noqa: E402
from hvd.ray import ElasticRayExecutor, RayExecutor  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False,
             object_store_memory=100 << 20)
    yield
    ray.shutdown()


def test_a_fixed_job():
    executor = RayExecutor(num_workers=3, env_vars={"MINE": "1"})
    with pytest.raises(hvd.InvalidError, match="start"):
        executor.run(job_functions.total, (0,))
    executor.start(timeout=200)
    try:
        results = executor.run(job_functions.total, (0.5,))
        assert [(rank, found) for rank, found, _ in results] == [(0, 6.5), (1, 6.5), (2, 6.5)]
        again = executor.run(fn=job_functions.total, kwargs={"plus": 0}, callbacks=None)
        assert sorted(pid for *_, pid in again) == sorted(executor.execute(
            job_functions.kept))  # the same processes
        assert executor.execute_single(job_functions.kept) in [pid for *_, pid in results]
        assert len(executor.run_remote(job_functions.total, (1,)).result(200)) == 3
        with pytest.raises(KeyError, match="mine of rank"):
            executor.run(job_functions.fails)
        for refused in (executor.run, executor.execute):
            with pytest.raises(hvd.InvalidError, match="callbacks: not served"):
                refused(job_functions.kept, callbacks=[print])
    finally:
        executor.shutdown()


def test_an_elastic_job_survives_a_kill(tmp_path):
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2))
    executor.start()
    from functools import partial

    results = executor.run(partial(job_functions.elastic, str(tmp_path / "mark"), 6))
    assert (tmp_path / "mark").exists()
    assert [step for step, _ in results] == [6, 6] and min(generation
                                                           for _, generation in results) > 1, results


def test_actors_that_join_by_address():
    """examples/deploy/ray: one of three actors is killed. Ray starts it anew, the others' processes go on."""
    example = Path(__file__).parents[3] / "examples" / "deploy" / "ray" / "train.py"
    package = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, example, "--workers", "3", "--lose"], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": package, "RAY_ADDRESS": ray.get_runtime_context().gcs_address})
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"rank (\d): (\d+) steps, value (\S+), generation (\d+), (.*)", done.stdout)
    assert [(rank, steps, value) for rank, steps, value, *_ in ends] == [(rank, "500", "125250")
                                                                         for rank in "012"], done.stdout
    assert [how for *_, how in ends].count("started anew") == 1, done.stdout
    assert min(int(generation) for *_, generation, _ in ends) > 1, done.stdout


def test_the_page_s_example():
    page = (Path(__file__).parents[3] / "docs" / "horovod.md").read_text()
    (block, ) = re.findall(r"```python\n(from hvd\.ray import.*?)```", page, re.S)
    names = {"train": job_functions.total}
    exec(block, names)
    assert [(rank, found) for rank, found, _ in names["results"]] == [(rank, 10.1) for rank in range(4)]


def test_settings_and_an_executable():
    """As Horovod's programs begin: settings, and an object in each actor, which execute() gives on."""
    settings = RayExecutor.create_settings(timeout_s=30, placement_group_timeout_s=200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor = RayExecutor(settings, num_workers=2)
    executor.start(executable_cls=job_functions.Kept, executable_args=[3], executable_kwargs={"more": 4})
    try:
        assert executor.execute(job_functions.add_one) == [8, 8] == executor.execute(lambda kept: kept.value)
        assert executor.execute_single(job_functions.add_one) == 9
        assert len(executor.run(job_functions.total, (0,))) == 2
    finally:
        executor.shutdown()
    with pytest.raises(ZeroDivisionError):
        executor.start(executable_cls=job_functions.Kept, executable_args=[1], executable_kwargs={"by": 0})
    with pytest.raises(hvd.InvalidError, match="start"):  # no actor is left
        executor.execute(job_functions.add_one)


def test_settings_that_mean_nothing_are_named_once():
    settings = RayExecutor.create_settings(ssh_str="key", nics=["eth0"], min_num_proc=2, reset_limit=3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        executor = RayExecutor(settings)
    assert executor.elastic and executor.min_workers == 2 and executor._options["reset_limit"] == 3
    (said, ) = [str(entry.message) for entry in found if "settings" in str(entry.message)]
    assert "nics, ssh_str of Horovod's" in said and "timeout_s" not in said, said
    with pytest.raises(hvd.InvalidError, match="executable_cls"):
        executor.start(executable_cls=job_functions.Kept)


@pytest.mark.parametrize("options, said", [({}, "num_workers"),
                                           ({"num_workers": 2, "min_workers": 1}, "not both"),
                                           ({"num_workers": 0}, "at least 1"),
                                           ({"min_workers": 3, "max_workers": 2}, "at least 3"), ])
def test_wrong_parameters(options, said):
    with pytest.raises(hvd.InvalidError, match=said):
        RayExecutor(**options)


def test_no_room():
    executor = RayExecutor(num_workers=1, cpus_per_worker=1000)
    with pytest.raises(TimeoutError, match="no room"):
        executor.start(timeout=1)
    with pytest.raises(hvd.InvalidError, match="to call"):
        executor.run(3)
