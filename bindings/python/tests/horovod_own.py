"""Horovod's own tests against packages hvd and horovod: horovod_own.py CHECKOUT FILE [-np N] [-k PATTERN]
[--json FILE] [--recorded FILE]

The tests of CHECKOUT/FILE (test/parallel/test_torch.py) run in jobs of N processes that hvdrun starts, by
pytest. The framework is imported once: a server forks the workers. Several tests share a job; one that fails
ends the job, runs again in a job of its own, and the rest goes on in a new one. A test passes if it does on
every rank, and is skipped if it skips itself on every rank. Nothing in Horovod's files is changed; of its
inner modules horovod.runner.util.threads and horovod.runner.common.util.env are given.

--recorded: {file: {ranks: names}} of the tests that passed before. The exit status is 1 if one of them does
not pass.
"""

import argparse
import collections
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# What hvdrun starts: it hands its variables and its output to the server and ends as the forked worker does.
# No import that takes long.
CLIENT = """
import array, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
data = b"\\0".join(os.fsencode(f"{k}={v}") for k, v in os.environ.items())
server.sendmsg([len(data).to_bytes(4, "little") + data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
answer = server.recv(4)
sys.exit(int.from_bytes(answer, "little") if answer else 1)
"""


def inner_modules():
    """The inner modules of Horovod's that its tests and their helpers import."""
    threads = types.ModuleType("horovod.runner.util.threads")

    def in_thread(target, args=(), name=None, daemon=True, silent=False):
        thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
        thread.start()
        return thread

    threads.in_thread = in_thread
    sys.modules["horovod.runner.util"] = types.ModuleType("horovod.runner.util")
    sys.modules[threads.__name__] = threads

    env = types.ModuleType("horovod.runner.common.util.env")
    env.get_env_rank_and_size = lambda: (int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]))
    sys.modules["horovod.runner.common"] = types.ModuleType("horovod.runner.common")
    sys.modules["horovod.runner.common.util"] = types.ModuleType("horovod.runner.common.util")
    sys.modules[env.__name__] = env


def work(tests, results):
    """In a forked worker: tests by pytest until one fails; what became of each goes to a file."""
    import pytest

    found = {}

    class Note:
        def pytest_runtest_logreport(self, report):
            entry = found.setdefault("::" + report.nodeid.partition("::")[2], {})
            if report.outcome != "passed" or report.when == "call":
                # The first word counts: after a subtest that skips itself the test around it passes.
                if entry.get("outcome") != "failed" and (report.outcome != "passed" or not entry):
                    entry.update(outcome=report.outcome, why=str(report.longrepr or ""))
            if report.when == "teardown":
                Path(results, str(os.getpid())).write_text(json.dumps(found))

    import horovod  # noqa: F401: whose shutdown() keeps the place for the next test's init()
    import hvd

    hvd.init()  # HOROVOD_RANK is there, as Horovod's launcher has it
    hvd.shutdown(keep_place=True)  # and tests begin with an init() of their own
    return int(
        pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-s", *tests], plugins=[Note()]) not in (0, 5))


def serve(path, preload, directory):
    """Forks a worker for each client, until standard input ends. One thread, as a process that forks should
    have."""
    inner_modules()
    for name in preload:
        __import__(name)
    sys.path[:0] = [directory, str(Path(directory).parent / "utils")]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    import select

    running = {}  # pid: the client's connection
    print("ready", flush=True)
    while True:
        ready = select.select([listener, sys.stdin, *running.values()], [], [], 0.02)[0]
        if sys.stdin in ready:
            break
        for pid, connection in [*running.items()]:
            if connection in ready:  # the client was ended
                os.kill(pid, signal.SIGKILL)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            connection = running.pop(pid)
            try:
                connection.send((os.waitstatus_to_exitcode(status) & 0xFF).to_bytes(4, "little"))
            except OSError:
                pass
            connection.close()
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        data, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(8))
        size = int.from_bytes(data, "little")
        data = b""
        while len(data) < size:
            data += connection.recv(size - len(data))
        descriptors = struct.unpack("2i", ancillary[0][2])
        pid = os.fork()
        if pid:
            running[pid] = connection
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        status = 1
        try:
            listener.close()
            connection.close()
            for descriptor, to in zip(descriptors, (1, 2)):
                os.dup2(descriptor, to)
            os.environ.clear()
            os.environ.update(entry.decode().split("=", 1) for entry in data.split(b"\0"))
            status = work(json.loads(os.environ["HOROVOD_OWN_TESTS"]), os.environ["HOROVOD_OWN_RESULTS"])
            import atexit

            atexit._run_exitfuncs()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def names(file, preload):
    """The tests of a file, by pytest in a process of its own."""
    script = (
        "import sys; sys.path[:0] = [%r, %r, %r]; import horovod_own, pytest; horovod_own.inner_modules()\n"
        "sys.exit(pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider', %r]))") % (
            str(HERE), str(file.parent), str(file.parents[1] / "utils"), str(file))
    found = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True)
    tests = re.findall(r"^\S*?(::\S.*)$", found.stdout, re.M)
    if not tests:
        raise SystemExit(found.stdout + found.stderr)
    return [f"{file}{test}" for test in tests]


def job(tests, given, path, results):
    """Tests in one job: the outcomes, as far as it came."""
    for file in results.iterdir():
        file.unlink()
    environment = {**os.environ, "HOROVOD_OWN_TESTS": json.dumps(tests), "HOROVOD_OWN_RESULTS": str(results)}
    command = [
        given.hvdrun, "-np",
        str(given.np), "-H", f"localhost:{given.np}", "--", sys.executable, "-S", "-E", "-c", CLIENT, path
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=given.timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate()
        output += f"\nnot at an end after {given.timeout} s"
    ranks = [json.loads(file.read_text()) for file in results.iterdir()]
    found = {}
    for test in tests:
        name = "::" + test.partition("::")[2]
        entries = [rank[name] for rank in ranks if rank.get(name, {}).get("outcome")]
        outcomes = {entry["outcome"] for entry in entries}
        why = "\n".join(entry["why"] for entry in entries if entry["why"])
        if len(entries) == given.np and outcomes == {"skipped"}:
            found[test] = "skipped", why
        elif len(entries) == given.np and outcomes <= {"passed", "skipped"} and (len(tests) > 1 or
                                                                                 process.returncode == 0):
            found[test] = "passed", ""
        else:
            found[test] = "failed", why + "\n" + output[-6000:]
            break
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("file")
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("-k", default="", help="a regular expression that a test's name has")
    parser.add_argument("--together", type=int, default=1000, help="how many tests share a job at most")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--hvdrun", default=str(ROOT / "build" / "release" / "bin" / "hvdrun"))
    given = parser.parse_args()
    file = (given.checkout / given.file).resolve()
    sys.path[:0] = [str(HERE.parent), str(ROOT / "bindings" / "horovod")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload = [
        "pytest", "numpy", "tensorflow" if "tensorflow" in given.file or "keras" in given.file else "torch"
    ]
    tests = [test for test in names(file, preload) if re.search(given.k, test.rpartition("::")[2])]
    found = {}
    with tempfile.TemporaryDirectory(prefix="horovod-own.") as directory:
        path, results = f"{directory}/server", Path(directory, "results")
        results.mkdir()
        script = "import sys; sys.path.insert(0, %r); import horovod_own; horovod_own.serve(%r, %r, %r)" % (
            str(HERE), path, preload, str(file.parent))
        server = subprocess.Popen([sys.executable, "-B", "-c", script], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        try:
            server.stdout.readline()
            while tests:
                some = job(tests[:given.together], given, path, results)
                failed = [test for test, (outcome, _) in some.items() if outcome == "failed"]
                if failed and len(some) > 1:  # of it alone, as what was before may have to do with it
                    some.update(job(failed, given, path, results))
                for test, (outcome, why) in some.items():
                    name = test.rpartition("::")[2]
                    found[name] = {"outcome": outcome, "why": why}
                    short = [line for line in why.splitlines() if line.startswith("E ")
                             ] or why.strip().splitlines() or [""]
                    print(f"{outcome:7} {name} {short[0][:200]}", flush=True)
                tests = tests[len(some):]
        finally:
            server.stdin.close()
            server.wait()
    print(given.file, given.np, "ranks:",
          dict(collections.Counter(entry["outcome"] for entry in found.values())))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    if given.recorded:
        names_before = json.loads(given.recorded.read_text())[given.file][str(given.np)]
        lost = [name for name in names_before if found.get(name, {}).get("outcome") != "passed"]
        if lost:
            raise SystemExit(f"{given.file}: passed before: {', '.join(lost)}")


if __name__ == "__main__":
    main()
