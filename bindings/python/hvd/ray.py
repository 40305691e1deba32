"""Jobs on a Ray cluster: workers are actors, hosts are Ray's nodes. `from hvd.ray import RayExecutor`.

The driver runs in the program that calls the executor; what workers hold travels by Ray. Needs the package
ray.
"""

from __future__ import annotations

import os
import threading
import warnings
from types import SimpleNamespace
from typing import Any, Callable, Mapping, Sequence

import ray

from . import driver as _driver
from .errors import InvalidError, JobFailedError


@ray.remote
class _Actor:
    """A worker's process."""

    def place(self) -> tuple[str, int]:
        return ray.util.get_node_ip_address(), os.getpid()

    def work(self, environment: Mapping[str, str], function: Callable[..., Any], arguments: Sequence[Any],
             options: Mapping[str, Any]) -> tuple[int, Any]:
        """(rank, function's result) of a worker of one job."""
        os.environ.update(environment)
        import hvd

        try:
            result = function(*arguments, **options)
            if not hvd.is_initialized():
                hvd.init()  # it has shut down, or never asked: the rank is this job's
            return hvd.rank(), result
        finally:
            hvd.shutdown(keep_place=False)
            for name in environment:
                os.environ.pop(name, None)

    def make(self, kind: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """The executable, which stays in this process."""
        self.executable = kind(*arguments, **options)

    def call(self, function: Callable[[Any], Any]) -> Any:
        return function(getattr(self, "executable", None))


class _Launcher(_driver.Launcher):
    """Starts each worker of the driver's as an actor on the node that the driver means."""

    def __init__(self, make: Callable[[str, int], Any], call: tuple[Any, Sequence[Any], Mapping[str, Any]]):
        self.make, self.function = make, call
        self.driver: _driver.Driver
        self.actors: dict[int, Any] = {}
        self.results: dict[int, tuple[int, Any]] = {}
        self.problem: BaseException | None = None
        self._lock = threading.Lock()
        self._watchers: list[threading.Thread] = []

    def start(self, request: _driver.LaunchRequest) -> None:
        actor = self.make(request.host, request.slot)
        with self._lock:
            self.actors[request.worker] = actor
        answer = actor.work.remote(request.environment, *self.function)
        watcher = threading.Thread(target=self._watch, args=(request.worker, answer), daemon=True)
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, worker: int, answer: Any) -> None:
        status = 0
        try:
            self.results[worker] = ray.get(answer)
        except ray.exceptions.RayTaskError as error:  # the function's own
            status = 1
            with self._lock:
                self.problem = self.problem or error
        except Exception:  # the actor, its node or the cluster is gone
            status = 256 + 9
        try:
            self.driver.worker_exited(worker, status)
        except Exception:  # the driver is closed
            pass

    def stop(self, worker: int, force: bool) -> None:
        """An actor has no polite end that reaches a function."""
        with self._lock:
            actor = self.actors.get(worker)
        if actor is not None:
            ray.kill(actor)

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.join(10)


# Of Horovod's settings those that mean something here.
_MEANT = ("min_num_proc", "max_num_proc", "reset_limit", "elastic_timeout", "placement_group_timeout_s")
_HOROVODS = {"timeout_s": 30, "nics": None, "ssh_identity_file": None, "ssh_str": None}  # and their defaults


def _settings(given: Any) -> dict[str, Any]:
    """Those that mean something; one warning names the others that are set."""
    fields = given if isinstance(given, Mapping) else getattr(given, "__dict__", {})
    idle = sorted(name for name, value in fields.items() if name not in _MEANT and not name.startswith("_") and
                  value is not None and value != _HOROVODS.get(name))
    if idle:
        warnings.warn(f"settings: {', '.join(idle)} of Horovod's have no effect here; docs/options.md has the "
                      "driver's options, which the executor takes as keywords", stacklevel=3)
    return {name: fields[name] for name in _MEANT if fields.get(name) is not None}


def _no_callbacks(callbacks: Any) -> None:
    if callbacks:
        raise InvalidError(
            "callbacks: not served; workers report by hvd.allgather_object or by Ray's own means")


class RayExecutor:
    """RayExecutor(num_workers=4), or RayExecutor(min_workers=2, max_workers=8), which is elastic.

    start() makes the actors of a fixed job, which keep between calls what their process holds; an elastic
    job's actors are made and replaced while it runs. run(fn, args, kwargs) is one job: fn calls
    hvd.init(), and its results come back in rank order. Other parameters are Horovod's: cpus_per_worker,
    use_gpu, gpus_per_worker, env_vars; num_workers_per_host together with num_hosts in place of num_workers.
    `settings` are create_settings()'s: of an elastic job they may give the numbers of workers, reset_limit
    and elastic_timeout, of a fixed one how long start() waits. `options` are the driver's.
    """

    @classmethod
    def create_settings(cls, timeout_s: int = 30, ssh_identity_file: str | None = None,
                        ssh_str: str | None = None, placement_group_timeout_s: int = 100,
                        nics: Any = None, **other: Any) -> SimpleNamespace:
        """What Horovod's programs hand to the constructor."""
        return SimpleNamespace(timeout_s=timeout_s, ssh_identity_file=ssh_identity_file, ssh_str=ssh_str,
                               placement_group_timeout_s=placement_group_timeout_s, nics=nics, **other)

    def __init__(self, settings: Any = None, num_workers: int | None = None, num_hosts: int | None = None,
                 num_workers_per_host: int | None = None, cpus_per_worker: float = 1, use_gpu: bool = False,
                 gpus_per_worker: float | None = None, min_workers: int | None = None,
                 max_workers: int | None = None, reset_limit: int | None = None,
                 elastic_timeout: float | None = None, env_vars: Mapping[str, str] | None = None,
                 **options: Any):
        meant = _settings(settings)
        if num_workers is None and num_hosts is None:
            min_workers = min_workers or meant.get("min_num_proc")
            max_workers = max_workers or meant.get("max_num_proc")
            reset_limit = reset_limit or meant.get("reset_limit")
            elastic_timeout = elastic_timeout or meant.get("elastic_timeout")
        self._start_timeout = float(meant.get("placement_group_timeout_s", 100))
        if num_workers is None and num_hosts is not None:
            num_workers = num_hosts * (num_workers_per_host or 1)
        if (num_workers is None) == (min_workers is None):
            raise InvalidError(
                "expected num_workers (a fixed job) or min_workers (an elastic one), and not both")
        for name, value in (("num_workers", num_workers), ("min_workers", min_workers), ("max_workers",
                                                                                         max_workers)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidError(f"{name} is {value!r}: expected at least 1")
        if max_workers is not None and max_workers < (min_workers or num_workers or 1):
            raise InvalidError(
                f"max_workers is {max_workers}: expected at least {min_workers or num_workers}")
        self.num_workers, self.min_workers, self.max_workers = num_workers, min_workers, max_workers
        gpus = 0 if not use_gpu else 1 if gpus_per_worker is None else gpus_per_worker
        self._resources = {"num_cpus": cpus_per_worker, "num_gpus": gpus}
        self._variables = {str(name): str(value) for name, value in (env_vars or {}).items()}
        self._options = {
            name: value for name, value in
            {"reset_limit": reset_limit, "elastic_timeout": elastic_timeout, **options}.items()
            if value is not None
        }
        self._actors: list[Any] = []
        self._places: list[tuple[str, int]] = []

    @property
    def elastic(self) -> bool:
        return self.min_workers is not None

    # ---- actors ----

    def _make(self, node: str | None = None) -> Any:
        options: dict[str, Any] = dict(self._resources)
        if node is not None:
            options["resources"] = {f"node:{node}": 0.001}
        actor: Any = _Actor
        return actor.options(**options).remote()

    def start(self, executable_cls: Callable[..., Any] | None = None, executable_args: Sequence[Any] = (),
              executable_kwargs: Mapping[str, Any] | None = None,
              extra_env_vars: Mapping[str, str] | None = None, timeout: float | None = None) -> None:
        """Makes the actors of a fixed job. TimeoutError: the cluster has had no room for them.

        Each makes an executable_cls(*executable_args, **executable_kwargs) for execute().
        """
        if executable_cls is not None and self.elastic:
            raise InvalidError("executable_cls: an elastic executor has no actors between jobs: expected "
                               "num_workers, or that the function makes it")
        timeout = self._start_timeout if timeout is None else timeout
        self._variables.update({str(name): str(value) for name, value in (extra_env_vars or {}).items()})
        if self.elastic or self._actors:
            return
        assert self.num_workers is not None
        self._actors = [self._make() for _ in range(self.num_workers)]
        try:
            self._places = ray.get([actor.place.remote() for actor in self._actors], timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            self.shutdown()
            raise TimeoutError(
                f"{self.num_workers} workers with {self._resources} each: the cluster had no room within "
                f"{timeout} s; it has {ray.cluster_resources()}") from None
        if executable_cls is not None:
            made = (executable_cls, list(executable_args or ()), dict(executable_kwargs or {}))
            try:
                ray.get([actor.make.remote(*made) for actor in self._actors])
            except BaseException:
                self.shutdown()
                raise

    def shutdown(self) -> None:
        """Ends the actors."""
        actors, self._actors, self._places = self._actors, [], []
        for actor in actors:
            ray.kill(actor)

    def execute(self, fn: Callable[[Any], Any], callbacks: Any = None) -> list[Any]:
        """fn(executable) in each actor, outside any job; None where start() has made no executable."""
        _no_callbacks(callbacks)
        self._need_actors("execute")
        return ray.get([actor.call.remote(fn) for actor in self._actors])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """fn(executable) in the first actor."""
        self._need_actors("execute_single")
        return ray.get(self._actors[0].call.remote(fn))

    def _need_actors(self, what: str) -> None:
        if not self._actors:
            raise InvalidError(f"{what}: an elastic executor has no actors between jobs" if self.elastic
                               else f"{what}: start() has not been called")

    # ---- jobs ----

    def run(self, fn: Callable[..., Any], args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None, callbacks: Any = None, *,
            timeout: float | None = None) -> list[Any]:
        """fn(*args, **kwargs) on every worker of one job: its results in rank order.

        An exception of the function is raised here, if it ended the job; JobFailedError says why else it
        failed.
        """
        _no_callbacks(callbacks)
        if not callable(fn):
            raise InvalidError(f"fn: expected something to call, and not {type(fn).__name__}")
        call = (fn, list(args or []), dict(kwargs or {}))
        options: dict[str, Any] = dict(self._options)
        if self.elastic:
            options.update(np=self.min_workers, min_np=self.min_workers, discover=self._nodes)
            if self.max_workers is not None:
                options["max_np"] = self.max_workers

            def make(host: str, slot: int) -> Any:
                return self._make(host)
        else:
            self._need_actors("run")
            free: dict[str, list[Any]] = {}
            for actor, (node, _) in zip(self._actors, self._places):
                free.setdefault(node, []).append(actor)
            options.update(np=self.num_workers,
                           hosts=",".join(f"{node}:{len(there)}" for node, there in free.items()),
                           restart=False)

            def make(host: str, slot: int) -> Any:
                return free[host][slot]

        launcher = _Launcher(make, call)
        here = ray.util.get_node_ip_address()
        if len(ray.nodes()) > 1:
            options.setdefault("listen", here)
        launcher.function = (_in_variables(self._variables, fn), *call[1:])
        with _driver.Driver(launcher=launcher, **options) as driver:
            launcher.driver = driver
            driver.start()
            try:
                driver.wait(timeout)
            except JobFailedError as error:
                if launcher.problem is not None:
                    raise launcher.problem from error
                raise
            launcher.close()
            return [result for _, result in sorted(launcher.results.values(), key=lambda pair: pair[0])]

    def run_remote(self, fn: Callable[..., Any], args: Sequence[Any] | None = None,
                   kwargs: Mapping[str, Any] | None = None) -> Any:
        """run() in a thread of this process: a concurrent.futures.Future of its results."""
        from concurrent.futures import Future

        future: Any = Future()

        def work() -> None:
            try:
                future.set_result(self.run(fn, args, kwargs))
            except BaseException as problem:
                future.set_exception(problem)

        threading.Thread(target=work, name="hvd ray", daemon=True).start()
        return future

    def _nodes(self) -> dict[str, int]:
        """Slots by node: how many workers its resources hold."""
        found = {}
        for node in ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                slots = [has.get(kind, 0) // wanted for kind, wanted in (
                    ("CPU", self._resources["num_cpus"]), ("GPU", self._resources["num_gpus"])) if wanted]
                if slots and min(slots) >= 1:
                    found[node["NodeManagerAddress"]] = int(min(slots))
        return found


def _in_variables(variables: Mapping[str, str], function: Callable[..., Any]) -> Callable[..., Any]:
    if not variables:
        return function

    def with_them(*arguments: Any, **options: Any) -> Any:
        os.environ.update(variables)
        return function(*arguments, **options)

    return with_them


class ElasticRayExecutor:
    """Horovod's earlier class: ElasticRayExecutor(settings, ...).start(), then run(function), which takes no
    arguments."""

    def __init__(self, settings: Any = None, use_gpu: bool = False, cpus_per_slot: float = 1,
                 gpus_per_slot: float | None = None, env_vars: Mapping[str, str] | None = None,
                 override_discovery: bool = True, min_workers: int | None = None,
                 max_workers: int | None = None, **options: Any):
        least = min_workers or getattr(settings, "min_num_proc", None) or getattr(settings, "num_proc",
                                                                                  None) or 1
        self._executor = RayExecutor(min_workers=least, max_workers=max_workers or
                                     getattr(settings, "max_num_proc", None), use_gpu=use_gpu,
                                     cpus_per_worker=cpus_per_slot, gpus_per_worker=gpus_per_slot,
                                     env_vars=env_vars, reset_limit=getattr(settings, "reset_limit", None),
                                     elastic_timeout=getattr(settings, "elastic_timeout", None), **options)

    @staticmethod
    def create_settings(min_num_proc: int | None = None, max_num_proc: int | None = None,
                        reset_limit: int | None = None, elastic_timeout: float = 600, **other: Any) -> Any:
        """What Horovod's programs hand to the constructor."""
        _settings({name: value for name, value in other.items() if name not in ("min_np", "max_np")})
        return SimpleNamespace(min_num_proc=min_num_proc or other.get("min_np"), reset_limit=reset_limit,
                               max_num_proc=max_num_proc or other.get("max_np"),
                               elastic_timeout=elastic_timeout)

    def start(self) -> None:
        """Nothing to do: actors are made when there is a function."""

    def run(self, worker_fn: Callable[[], Any], callbacks: Any = None) -> list[Any]:
        _no_callbacks(callbacks)
        return self._executor.run(worker_fn)


__all__ = ["ElasticRayExecutor", "RayExecutor"]
