"""Jobs of scripts that use PyTorch: a server imports it once and forks each worker. `python forked.py
MODULE...` is that server."""

import gc
import importlib
import json
import os
import queue
import runpy
import select
import signal
import subprocess
import sys
import threading
import time

# What Triton's bindings (nanobind) say of a worker that ends with what the server had frozen.
NOISE = ("nanobind", " - leaked ", " - ... skipped")
ENDED = "\1ended "  # begins the server's own lines; what else it prints is its workers'


def serve():
    """Forks a worker for each line of standard input, which is JSON. It has no thread, which a fork would
    lose."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # What is there stays as long as the server. A worker that ends would look through all of it, which takes
    # a second.
    gc.collect()
    gc.freeze()
    workers, poll, rest = {}, select.poll(), b""
    poll.register(0, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != 0:
                pid, worker = workers.pop(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(descriptor)
                os.close(descriptor)
                os.write(1, f"{ENDED}{worker} {status}\n".encode())
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return [os.kill(pid, signal.SIGKILL) for pid, _ in workers.values()]
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    return work(request)
                workers[os.pidfd_open(pid)] = pid, request["worker"]
                poll.register(max(workers), select.POLLIN)


def work(request):
    """In the worker: the script as if Python had been started with it."""
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv, sys.path[0] = request["arguments"], os.path.dirname(request["arguments"][0])
    sys.stdout.reconfigure(line_buffering=True)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve()
    sys.exit()

from conftest import PACKAGE, PATIENCE  # noqa: E402

import hvd  # noqa: E402


class Job(hvd.driver.Launcher):
    """Job(size, [script, arguments...]): started; its lines, and events of those that are JSON objects."""

    def __init__(self, size, arguments, environment=(),
                 preload=("torch", "torch._dynamo", "hvd.torch", "hvd.torch.distributed"), **options):
        self._arguments = [str(argument) for argument in arguments]
        self._environment = {"HVD_INIT_TIMEOUT": str(60 * PATIENCE), **dict(environment)}
        self.lines, self.seen, self._events, self._pids = [], [], queue.Queue(), {}
        self._server = subprocess.Popen(
            [sys.executable, "-B", __file__, *preload], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"})
        defaults = {
            "hosts": f"localhost:{size}", "restart": False, "stop_grace": 2, "elastic_timeout": 60 * PATIENCE,
            "start_timeout": 60 * PATIENCE
        }
        self.driver = hvd.driver.Driver(launcher=self, np=size,
                                        log=lambda level, line: self.lines.append(f"driver: {line}"),
                                        **{**defaults, **options})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.driver.start()

    def start(self, request):
        line = {
            "worker": request.worker, "environment": {**self._environment, **request.environment},
            "arguments": self._arguments
        }
        self._server.stdin.write(json.dumps(line).encode() + b"\n")
        self._server.stdin.flush()

    def stop(self, worker, force):
        """They end with the server, in close()."""
        if force:
            self._server.stdin.close()

    def _read(self):
        for raw in self._server.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            line, _, ended = line.partition(ENDED)
            if ended:
                worker, status = map(int, ended.split())
                self.driver.worker_exited(worker, 256 - status if status < 0 else status)
            if (line or not ended) and not any(noise in line for noise in NOISE):
                self.lines.append(line)
            while line.startswith("{"):  # two workers' may stand in one line
                event, end = json.JSONDecoder().raw_decode(line)
                self._events.put(event)
                line = line[end:]

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    def _said(self):
        return "\n".join(self.lines[-80:])

    def wait(self, kind, **wanted):
        """The next event of a kind, with these values."""
        deadline = time.monotonic() + 60 * PATIENCE
        while True:
            try:
                event = self._events.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() < deadline and self.driver.status().phase < hvd.driver.Phase.ENDING:
                    continue
                raise AssertionError(f"no {kind} {wanted}; the job said:\n{self._said()}") from None
            self.seen.append(event)
            if event["event"] == kind and all(event[key] == value for key, value in wanted.items()):
                return event

    def end(self):
        """The events "end", when all is over."""
        try:
            self.driver.wait(60 * PATIENCE)
        except hvd.HvdError as error:
            raise AssertionError(f"{error}; the job said:\n{self._said()}") from None
        self._server.stdin.close()
        self._reader.join(20 * PATIENCE)
        while not self._events.empty():
            self.seen.append(self._events.get())
        return [event for event in self.seen if event["event"] == "end"]

    def close(self):
        self._server.stdin.close()
        self.driver.close()
        self._server.wait(20 * PATIENCE)
