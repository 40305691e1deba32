"""Jobs on a Spark cluster: each worker is a Spark task. `import hvd.spark; hvd.spark.run(function,
num_proc=4)`.

The driver runs beside Spark's. Tasks come to it by its address and a secret of the job, which travels within
Spark's own tasks: encrypt those (spark.network.crypto.enabled) where others listen. Needs the package
pyspark, and Java.
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from . import driver as _driver
from .errors import HvdError, InvalidError, JobFailedError


def _work(environment: Mapping[str, str], function: Callable[..., Any], arguments: Sequence[Any],
          options: Mapping[str, Any]) -> Callable[[Iterable[Any]], Iterator[tuple[int, Any]]]:
    """What a task does: (rank, function's result)."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        os.environ.update(environment)
        import hvd

        try:
            result = function(*arguments, **options)
            if not hvd.is_initialized():
                hvd.init()  # it never asked: the rank is this job's
            rank = hvd.rank()
            hvd.shutdown(keep_place=False)
            return iter([(rank, result)])
        except BaseException as problem:
            if hvd.is_initialized():
                hvd.abort()
                hvd.context().close()
            if isinstance(problem, hvd.RefusedError) and "the job has ended" in str(problem):
                return iter([])  # an attempt that came too late: the driver tells how the job ended
            raise
        finally:
            for name in environment:
                os.environ.pop(name, None)

    return task


def _spark_context(given: Any) -> Any:
    from pyspark import SparkContext

    context = given if given is not None else SparkContext._active_spark_context
    if context is None:
        raise InvalidError(
            "there is no SparkContext: expected one, such as SparkSession.builder.getOrCreate()'s")
    return context


def _run(function: Callable[...,
                            Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, spark_context: Any,
         tasks: int, env: Mapping[str, str] | None, barrier: bool, options: dict[str, Any]) -> list[Any]:
    if not callable(function):
        raise InvalidError(f"fn: expected something to call, and not {type(function).__name__}")
    if tasks < 1:
        raise InvalidError(f"num_proc is {tasks}: expected at least 1")
    context = _spark_context(spark_context)
    host = context.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    if context.master.startswith("local"):
        host = "127.0.0.1"
    secret = secrets.token_hex(32)
    with _driver.Driver(discover_agents=True, max_np=tasks, listen=host, secret=secret, restart=False,
                        slots_per_host=tasks, **options) as driver:
        driver.start()
        environment = {str(name): str(value) for name, value in (env or {}).items()}
        environment.update(HVD_DRIVER=f"{host}:{driver.status().port}", HVD_SECRET=secret)
        work = _work(environment, function, list(args), dict(kwargs or {}))
        data = context.parallelize(range(tasks), tasks)
        stage = data.barrier() if barrier else data
        group = f"hvd-{environment['HVD_DRIVER']}"
        ended = threading.Event()

        def watch() -> None:
            """A job that failed ends its tasks, which Spark would otherwise start again."""
            while not ended.is_set():
                try:
                    driver.wait(0.5)
                    return
                except JobFailedError:
                    context.cancelJobGroup(group)
                    return
                except HvdError:
                    continue

        watcher = threading.Thread(target=watch, name="hvd spark", daemon=True)
        watcher.start()
        context.setJobGroup(group, "hvd.spark", interruptOnCancel=True)
        try:
            results = stage.mapPartitions(work).collect()
        except BaseException as error:
            try:
                driver.wait(0)
            except JobFailedError as sentence:
                raise sentence from error
            except HvdError:
                pass
            raise
        finally:
            ended.set()
            context.setLocalProperty("spark.jobGroup.id", None)
            watcher.join(10)
        driver.wait()  # every worker has said that it is done, or the job has failed
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]


def run(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None, start_timeout: float | None = None, use_mpi: bool | None = None,
        use_gloo: bool | None = None, extra_mpi_args: str | None = None, env: Mapping[str, str] | None = None,
        stdout: Any = None, stderr: Any = None, verbose: int = 1, nics: Any = None,
        prefix_output_with_timestamp: bool = False, executable: str | None = None, *,
        spark_context: Any = None, **options: Any) -> list[Any]:
    """fn(*args, **kwargs) in num_proc tasks that start together (a barrier stage): its results in rank order.

    num_proc: by default as many as Spark runs at once (defaultParallelism). `options` are the driver's. The
    other parameters are Horovod's, and have no effect. Blocks; JobFailedError or Spark's own error says why
    it failed.
    """
    return _job(fn, args, kwargs, num_proc, None, None, start_timeout, env, True, spark_context, options)


def run_elastic(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
                num_proc: int | None = None, min_num_proc: int | None = None, max_num_proc: int | None = None,
                start_timeout: float | None = None, elastic_timeout: float | None = None,
                reset_limit: int | None = None, env: Mapping[str, str] | None = None, stdout: Any = None,
                stderr: Any = None, verbose: int = 1, nics: Any = None,
                prefix_output_with_timestamp: bool = False, min_np: int | None = None,
                max_np: int | None = None, *, spark_context: Any = None, **options: Any) -> list[Any]:
    """run() whose tasks may fail: the others go on, and Spark's next attempt of a task joins them.

    How often it tries is spark.task.maxFailures (in local mode local[N,F]).
    """
    options.update({
        name: value for name, value in (("elastic_timeout", elastic_timeout), ("reset_limit", reset_limit))
        if value is not None
    })
    options.pop("cooldown_range", None)  # Horovod's, without effect
    return _job(fn, args, kwargs, num_proc, min_num_proc or min_np, max_num_proc or max_np, start_timeout,
                env, False, spark_context, options)


def _job(fn: Any, args: Any, kwargs: Any, num_proc: int | None, least: int | None, most: int | None,
         start_timeout: float | None, env: Any, barrier: bool, spark_context: Any,
         options: dict[str, Any]) -> list[Any]:
    number = num_proc if num_proc is not None else _spark_context(spark_context).defaultParallelism
    if start_timeout is not None:
        options.setdefault("elastic_timeout", float(start_timeout))
    return _run(fn, args, kwargs, spark_context, most or number, env, barrier,
                {"np": number, "min_np": least or number, **options})


__all__ = ["run", "run_elastic"]
