"""hvd.spark on Spark in local mode."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Java is not installed", allow_module_level=True)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
os.environ["PYSPARK_PYTHON"] = sys.executable

import hvd  # noqa: E402
import hvd.spark  # noqa: E402
import job_functions as functions  # noqa: E402


@pytest.fixture(scope="module")
def spark():
    context = pyspark.SparkContext(
        master="local[4,4]", conf=pyspark.SparkConf().set("spark.ui.enabled",
                                                          "false").set("spark.driver.memory", "512m"))
    context.setLogLevel("ERROR")
    yield context
    context.stop()


def test_a_job(spark):
    results = hvd.spark.run(functions.total, (0.5,), num_proc=3, env={"MINE": "1"})
    assert [(rank, found) for rank, found, _ in results] == [(0, 6.5), (1, 6.5), (2, 6.5)]
    assert len(hvd.spark.run(functions.total, kwargs={"plus": 0}, num_proc=2, spark_context=spark)) == 2


def test_the_page_s_example(spark):
    page = (Path(__file__).parents[3] / "docs" / "horovod.md").read_text()
    (block, ) = re.findall(r"```python\n(import hvd\.spark.*?)```", page, re.S)
    lines = block.strip().splitlines()
    names = {"train": functions.total}
    exec("\n".join(lines[:2]), names)
    assert [(rank, found) for rank, found, _ in names["results"]] == [(rank, 10.1) for rank in range(4)]
    exec("\n".join(lines[2:]), names)  # of as many as come in time
    found = [(rank, total) for rank, total, _ in names["results"]]
    assert 2 <= len(found) <= 4 and found == [(rank, found[0][1]) for rank in range(len(found))], found


def test_a_task_that_fails_is_tried_again_and_joins(spark, tmp_path):
    results = hvd.spark.run_elastic(functions.elastic, (str(tmp_path / "mark"), 6), num_proc=2)
    assert (tmp_path / "mark").exists() and [step for step, _ in results] == [6, 6], results


def test_a_task_that_comes_too_late_harms_nobody(spark, tmp_path):
    results = hvd.spark.run_elastic(functions.elastic, (str(tmp_path / "mark"), 6), num_proc=2,
                                    min_num_proc=1)
    assert (tmp_path / "mark").exists() and {step for step, _ in results} == {6}, results


def test_the_functions_own_error(spark):
    with pytest.raises(Exception, match="mine of rank|lost|refused"):
        hvd.spark.run(functions.fails, num_proc=2)
    with pytest.raises(hvd.InvalidError, match="to call"):
        hvd.spark.run(3, num_proc=1)
    with pytest.raises(hvd.InvalidError, match="num_proc is 0"):
        hvd.spark.run(functions.total, num_proc=0)
