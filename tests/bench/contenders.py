"""The contenders of collective_bench: groups of processes, one a rank, that wait at FIFOs for what to
measure."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BIN = os.environ.get("HVD_BENCH_BIN", os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.dirname(os.path.abspath(__file__))
READY_S = 60
ANSWER_S = 240


class Unavailable(Exception):
    """This contender can't be measured here; the text says why."""


class Failed(Exception):
    """A contender's ranks failed; the text is what they said."""


def program(name):
    path = os.path.join(BIN, name)
    if not os.access(path, os.X_OK):
        raise Unavailable("not built")
    return path


class Group:
    """Ranks of one contender. `commands(directory)` gives a list of (argument vector, environment)."""

    def __init__(self, name, size, commands):
        self.name, self.size = name, size
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = tempfile.mkdtemp(prefix="hvd-bench-%s-" % name, dir=shared)
        self.processes, self.fds, self.pending = [], {}, {}
        try:
            self._start(commands(self.directory))
        except BaseException:
            self.close()
            raise

    def _start(self, commands):
        with open(os.path.join(self.directory, "barrier"), "wb") as barrier:
            barrier.write(bytes(4096))
        for rank in range(self.size):
            for kind in ("commands", "replies"):
                path = os.path.join(self.directory, "%s.%d" % (kind, rank))
                os.mkfifo(path)
                self.fds[kind, rank] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self.pending[rank] = b""
        self.log = open(os.path.join(self.directory, "log"), "w+b")
        for argv, environment in commands:
            environment = {**os.environ, "HVD_BENCH_DIRECTORY": self.directory, **environment}
            self.processes.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                 env=environment, start_new_session=True))
        self._replies(READY_S, "ready")

    def _said(self):
        self.log.seek(0)
        return "\n".join(self.log.read().decode("utf-8", "replace").splitlines()[-12:])

    def _replies(self, seconds, word):
        """The rest of each rank's next line, which must begin with `word`."""
        lines, deadline = {}, time.monotonic() + seconds
        poller = select.poll()
        ranks = {self.fds["replies", rank]: rank for rank in range(self.size)}
        for fd in ranks:
            poller.register(fd, select.POLLIN)
        while len(lines) < self.size:
            for fd, _ in poller.poll(200):
                rank = ranks[fd]
                self.pending[rank] += os.read(fd, 1 << 20)
                if b"\n" in self.pending[rank]:
                    line, self.pending[rank] = self.pending[rank].split(b"\n", 1)
                    lines[rank] = line.decode()
                    poller.unregister(fd)
            ended = [p.returncode for p in self.processes if p.poll() is not None]
            if len(lines) < self.size and (ended or time.monotonic() > deadline):
                why = "ended with status %s" % ended[0] if ended else "no answer for %d s" % seconds
                raise Failed("%s, %d ranks: %s\n%s" % (self.name, self.size, why, self._said()))
        for rank, line in lines.items():
            if line.split(" ", 1)[0] != word:
                raise Failed("%s: rank %d said %s" % (self.name, rank, line[:200]))
        return [lines[rank][len(word):] for rank in range(self.size)]

    def _tell(self, text):
        for rank in range(self.size):
            os.write(self.fds["commands", rank], text.encode() + b"\n")

    def run(self, operation, size, samples, batch, warm, check):
        """Microseconds a call in each sample: from the start of the rank that starts last to the end of the
        last."""
        self._tell("run %s %d %d %d %d %d" % (operation, size, samples, batch, warm, check))
        times = [[int(number) for number in line.split()] for line in self._replies(ANSWER_S, "ok")]
        return [(max(t[2 * i + 1] for t in times) - max(t[2 * i] for t in times)) / batch / 1e3
                for i in range(samples)]

    def release(self):
        """Gives the memory of the last operation back."""
        self._tell("release")
        self._replies(ANSWER_S, "ok")

    def close(self):
        if self.processes and all(p.poll() is None for p in self.processes):
            self._tell("quit")
        deadline = time.monotonic() + 15
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for fd in self.fds.values():
            os.close(fd)
        shutil.rmtree(self.directory, ignore_errors=True)


def hvd(name, size, settings=None, ranks=None):
    def commands(directory):
        argv = [program("hvdrun"), "-np", str(size), "--local-hosts", "-H", "localhost:%d" % size]
        for key, value in {"HVD_BENCH_DIRECTORY": directory, **(settings or {})}.items():
            argv += ["-x", "%s=%s" % (key, value.replace("{directory}", directory))]
        return [(argv + ["--", *(ranks or [program("ranks_hvd")])], {})]
    return Group(name, size, commands)


def timeline_settings():
    """Variables that make the ranks write a timeline."""
    described = subprocess.run([program("hvdrun"), "--help"], stdout=subprocess.PIPE, text=True).stdout
    if "timeline" not in described:
        raise Unavailable("this library has none")
    return {"HVD_TIMELINE": "{directory}/timeline.%w"}


def gloo(size):
    def commands(_):
        return [([program("ranks_gloo"), str(rank), str(size), "127.0.0.1"], {}) for rank in range(size)]
    return Group("gloo", size, commands)


def mpirun(size, environment, *program_and_arguments):
    run = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if run is None:
        raise Unavailable("not installed")
    argv = [run, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "--mca", "btl", "self,vader",
            "-np", str(size)]
    for name in ("HVD_BENCH_DIRECTORY", *environment):
        argv += ["-x", name]
    return argv + list(program_and_arguments)


def mpi(size):
    return Group("openmpi", size, lambda directory: [
        (mpirun(size, {}, program("ranks_mpi")), {"TMPDIR": directory})])


def module(name):
    """libhvd's module of that backend is there."""
    if not any(os.path.exists(os.path.join(path, "libhvd_%s.so" % name)) for path in (
            os.path.join(BIN, "..", "lib", "hvd", "1"), *os.environ.get("HVD_PLUGIN_PATH", "").split(":"))):
        raise Unavailable("libhvd_%s.so is not built" % name)


def hvd_mpi(size, name="hvd_mpi", more=None):
    """libhvd as one uses it in a job of mpirun's: no driver, and nothing survives a death."""
    module("mpi")
    environment = {"HVD_BACKEND": "mpi", **(more or {})}
    return Group(name, size, lambda directory: [
        (mpirun(size, environment, program("ranks_hvd")), {"TMPDIR": directory, **environment})])


def hvd_mpi_alone(size):
    """The same, and MPI moves all data."""
    return hvd_mpi(size, "hvd_mpi_alone", {"HVD_LOCAL": "messages"})


def hvd_mpi_elastic(size):
    module("mpi")
    return hvd("hvd_mpi_elastic", size, {"HVD_BACKEND": "mpi", "HVD_LOCAL": "messages"})


def gpus(size):
    """NCCL takes one rank a GPU, or, where ranks are to share one, each for a host of its own: then through
    sockets."""
    asked = subprocess.run([program("ranks_nccl"), "devices"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    if asked.returncode != 0:
        raise Unavailable(asked.stdout.strip())
    if int(asked.stdout) < size and not os.environ.get("HVD_BENCH_SHARE_GPU"):
        raise Unavailable("%s GPUs for %d ranks (HVD_BENCH_SHARE_GPU=1 lets them share)" %
                          (asked.stdout.strip(), size))


def nccl(size):
    gpus(size)
    return Group("nccl", size, lambda _: [([program("ranks_nccl"), "raw", str(rank), str(size)], {})
                                          for rank in range(size)])


def hvd_nccl(size):
    gpus(size)
    module("nccl")
    return hvd("hvd_nccl", size, ranks=[program("ranks_nccl"), "hvd"])


def torch_python():
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-c", "import torch.distributed"]
        if os.path.exists(python) and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
            return python
    raise Unavailable("not installed")


def torch(size):
    python = torch_python()

    def commands(_):
        return [([python, os.path.join(HERE, "ranks_torch.py"),
                  str(rank), str(size)], {"OMP_NUM_THREADS": "1"}) for rank in range(size)]
    return Group("torch_gloo", size, commands)


def memcpy():
    return Group("memcpy", 1, lambda _: [([program("ranks_memcpy")], {})])


class OneHost:
    """This machine, where ranks talk over loopback."""

    @staticmethod
    def hvd_over(backend, size, name, settings):
        """libhvd over one of its modules, which moves all data."""
        module(backend)
        return hvd(name, size, {"HVD_LOCAL": "off", "HVD_BACKEND": backend, **settings})

    @staticmethod
    def gloo(size):
        return gloo(size)

    @staticmethod
    def mpi_tcp(size):
        """Open MPI's own TCP."""
        return Group("openmpi_tcp", size, lambda directory: [
            (["self,tcp" if word == "self,vader" else word for word in mpirun(size, {}, program("ranks_mpi"))],
             {"TMPDIR": directory})])

    def close(self):
        pass


class TwoHosts:
    """Two network namespaces as two hosts with half of the ranks each.

    A pair of virtual interfaces joins them, or a line that holds each packet for so many microseconds
    (delay_line.cc)."""

    ADDRESSES = ("10.213.77.1", "10.213.77.2")
    MTU, QUEUE = 65000, 10000  # of the line: large packets, so that it has few to move; none is dropped

    def __init__(self, delay_us=None):
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if shutil.which("ip") is None:
            raise Unavailable("no ip command (package iproute2)")
        self.names = ["hvdbench%d%s" % (os.getpid(), end) for end in "ab"]
        self.made = []
        self.line = None
        try:
            self._make(delay_us)
        except Unavailable:
            self.close()
            raise

    def _make(self, delay_us):
        links = ["hvb%d%s" % (os.getpid() % 100000, end) for end in "ab"]
        for name in self.names:
            self._ip("netns", "add", name)
            self.made.append(name)
        if delay_us is None:
            self._ip("link", "add", links[0], "netns", self.names[0], "type", "veth",
                     "peer", "name", links[1], "netns", self.names[1])
        else:
            self._start_line(links, delay_us)
        for name, link, address in zip(self.names, links, self.ADDRESSES):
            if self.line is not None:
                self._ip("-n", name, "link", "set", link, "mtu", str(self.MTU), "txqueuelen", str(self.QUEUE))
            self._ip("-n", name, "addr", "add", address + "/24", "dev", link)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", link, "up")

    def _start_line(self, links, delay_us):
        self.line = subprocess.Popen(
            [program("delay_line"), self.names[0], links[0], self.names[1], links[1], str(delay_us)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.line.stdout.readline()
        if said != "ready\n":
            raise Unavailable(said.strip() or "delay_line ended without a word")

    @staticmethod
    def _ip(*arguments):
        result = subprocess.run(["ip", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)
        if result.returncode != 0:
            raise Unavailable("ip %s: %s" % (" ".join(arguments), result.stdout.strip()))

    def _inside(self, index, argv):
        return ["ip", "netns", "exec", self.names[index], *argv]

    def hvd(self, size, settings=None, name="hvd"):
        def commands(directory):
            # hvdrun starts every worker here; each goes to the namespace that is its host.
            start = os.path.join(directory, "start.sh")
            with open(start, "w") as script:
                script.write('#!/bin/sh\n[ "$HVD_HOST" = one ] && exec "$@"\nexec ip netns exec %s "$@"\n' %
                             self.names[1])
            os.chmod(start, 0o755)
            argv = [
                program("hvdrun"), "-np",
                str(size), "--local-hosts", "-H",
                "one:%d,two:%d" % (size - size // 2, size // 2), "--set", "listen=" + self.ADDRESSES[0], "-x",
                "HVD_BENCH_DIRECTORY=" + directory
            ]
            for key, value in (settings or {}).items():
                argv += ["-x", "%s=%s" % (key, value)]
            return [(self._inside(0, argv + ["--", "/bin/sh", start, program("ranks_hvd")]), {})]
        return Group(name, size, commands)

    def hvd_over(self, backend, size, name, settings):
        module(backend)
        return self.hvd(size, {"HVD_LOCAL": "off", "HVD_BACKEND": backend, **settings}, name)

    def mpi_tcp(self, _):
        raise Unavailable("mpirun starts no rank in another namespace")

    def gloo(self, size):
        def commands(_):
            result = []
            for rank in range(size):
                host = 0 if rank < size - size // 2 else 1
                result.append((self._inside(host, [program("ranks_gloo"), str(rank), str(size),
                                                   self.ADDRESSES[host]]), {}))
            return result
        return Group("gloo", size, commands)

    def close(self):
        if self.line is not None:
            self.line.communicate()  # it ends when its standard input does
            self.line = None
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.made = []
