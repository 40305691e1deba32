"""Before init, after shutdown, after a fork, from other threads, at exit: an exception, never a crash."""

import gc
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import hvd
from conftest import PACKAGE, PATIENCE


def test_after_shutdown():
    context = hvd.init()
    handle = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
    handle.wait()
    state, sampler = hvd.elastic.ObjectState(a=1), hvd.elastic.ElasticSampler(4)
    members = hvd.add_process_set([0])
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(np.ones(2)), hvd.membership, state.commit,
                 members.size, sampler.next, lambda: hvd.broadcast_object(1), context.backend):
        with pytest.raises(hvd.ClosedError):
            call()
    assert handle.wait().tolist() == [1, 1] and handle.done()
    assert len(sampler.state_dict()["saved"]) == 64  # a checkpoint can still be written
    context.close()
    context.close()
    for call in (hvd.rank, hvd.barrier, state.commit, members.size, sampler.next, context.abort):
        with pytest.raises(hvd.ClosedError, match="HVD_CLOSED"):
            call()
    assert handle.output().tolist() == [1, 1]
    assert hvd.init() is not context
    hvd.shutdown()


def test_abort_frees_who_waits(job):
    aborted = threading.Event()

    def rank(context):
        if context.rank() == 1:
            with pytest.raises(hvd.HorovodInternalError):
                context.barrier("ready")  # rank 0 may be out of it, and gone, before this rank is
                assert aborted.wait(30)
                context.barrier("never")
            return
        handle, problems = context.barrier_async("never"), []

        def wait():
            try:
                handle.wait()
            except hvd.HvdError as error:
                problems.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        context.barrier("ready")
        context.abort("enough")
        aborted.set()
        waiter.join(30)
        assert isinstance(problems[0], hvd.ClosedError)
        with pytest.raises(hvd.ClosedError):
            context.barrier()

    job(2, rank)


def test_a_fork_has_no_context(alone):
    values = np.ones(2)
    handle, state, sampler = hvd.allreduce_async(values), hvd.elastic.ObjectState(
        a=1), hvd.elastic.ElasticSampler(4)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = []
            for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(values), handle.wait, handle.done,
                         state.commit, sampler.next, alone.shutdown, alone.abort):
                try:
                    call()
                    said.append("no exception")
                except hvd.InvalidError as error:
                    said.append("ok" if str(alone._handle.process) in str(error) else str(error))
            said.append("ok" if not hvd.is_initialized() else "initialized")
            del handle, state, sampler
            alone.close()
            os.write(write, "\n".join(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert said.split("\n") == ["ok"] * 10
    assert handle.wait().tolist() == [1, 1] and hvd.rank() == 0  # nothing happened to the parent
    state.commit()


def test_a_fork_may_have_a_context_of_its_own(python):
    done = python("""
        import os, hvd
        hvd.init()
        child = os.fork()
        if child == 0:
            context = hvd.init()
            print(hvd.allgather(b"child").tobytes(), flush=True)
            hvd.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(hvd.allgather(b"parent").tobytes())
    """)
    assert done.stdout == "b'child'\nb'parent'\n"


def test_a_child_that_just_ends_leaves_the_parent_alone(python):
    """By sys.exit, with what the parent has open: contexts, a driver, an operation that nobody waits for."""
    done = python("""
        import os, sys, hvd
        hvd.init()
        hvd.register_listener(print)
        state, handle = hvd.elastic.ObjectState(a=1), hvd.allreduce_async(bytearray(1000), op=hvd.Sum)
        driver = hvd.driver.Driver(["true"], np=1, hosts="localhost:1")
        child = os.fork()
        if child == 0:
            del state, handle
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        state.commit()
        print(hvd.allgather(b"parent").tobytes(), handle.wait() is not None, driver.status().phase.name)
    """)
    assert (done.stdout, done.stderr) == ("b'parent' True NEW\n", "")


def test_a_process_of_multiprocessing(python):
    """Its exception is the child's answer, and a context of the child's own works."""
    done = python("""
        import multiprocessing, hvd

        def use(answers):
            try:
                hvd.allreduce(bytearray(1), op=hvd.Sum)
            except hvd.InvalidError as error:
                answers.put("process" in str(error))
            hvd.init()
            answers.put(hvd.allgather(b"child").tobytes())
            hvd.shutdown()

        context = hvd.init()
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        child = fork.Process(target=use, args=(answers,))
        child.start()
        print(answers.get(timeout=30), answers.get(timeout=30))
        child.join()
        print(child.exitcode, hvd.context() is context, hvd.allgather(b"parent").tobytes())
    """)
    assert (done.stdout, done.stderr) == ("True b'child'\n0 True b'parent'\n", "")


def test_a_child_leaves_operations_that_nobody_waits_for(job):
    def rank(context):
        if context.rank() == 1:
            context.barrier("go")
            context.allreduce(np.ones(8), "x", hvd.Sum)
            context.barrier("end")
            return None
        array = np.ones(8)
        context.allreduce_async(array, "x", hvd.Sum)
        alive = weakref.ref(array)
        del array
        child = os.fork()
        if child == 0:
            try:
                context.barrier("child")
            except hvd.InvalidError:
                os._exit(alive() is not None)
            finally:
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        context.barrier("go")
        context.barrier("end")
        return status

    assert job(2, rank)[0] == 1


def test_a_state_is_used_by_one_thread_at_a_time(alone):
    inside, go, problems = threading.Event(), threading.Event(), []

    class Slow:
        @staticmethod
        def dumps(thing):
            inside.set()
            assert go.wait(30)
            return b"x"

        @staticmethod
        def loads(data):
            return data

    state = hvd.elastic.ObjectState(codec=Slow(), a=1)
    thread = threading.Thread(target=state.save)
    thread.start()
    assert inside.wait(30)
    for call in (state.save, state.commit, state.restore, lambda: state.add_array("k", bytearray(1))):
        try:
            call()
        except hvd.InvalidError as error:
            problems.append(str(error))
    go.set()
    thread.join(30)
    assert len(problems) == 4 and all("another call on this state" in problem for problem in problems)
    state.save()


def test_closing_while_others_use_it(alone):
    """What runs on a handle is never freed under it."""
    contexts = [hvd.Context() for _ in range(20)]
    for context in contexts:
        problems = []

        def use(context=context):
            try:
                while True:
                    context.allreduce(np.ones(8), "x", hvd.Sum)
            except hvd.HvdError as error:
                problems.append(error)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        context.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert all(isinstance(p, (hvd.ClosedError, hvd.InvalidError)) for p in problems)


def test_a_context_that_nobody_holds_leaves_the_job():
    """Also with an operation under way that nobody waits for, whose handle is freed with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rendezvous = "127.0.0.1:%d" % server.getsockname()[1]
    contexts = {}

    def join(rank):
        contexts[rank] = hvd.Context(rank=rank, size=2, rendezvous=rendezvous, secret="s" * 32,
                                     operation_timeout=30 * PATIENCE)

    second = threading.Thread(target=join, args=(1,))
    second.start()
    join(0)
    second.join()
    array = np.ones(8)
    contexts[1].allreduce_async(array, "never", hvd.Sum)
    kept = weakref.ref(array)
    del array
    assert kept() is not None
    del contexts[1]
    gc.collect()
    assert kept() is None
    with pytest.raises(hvd.HorovodInternalError):
        contexts[0].barrier("alone now")
    contexts[0].close()


def test_leaving_everything_to_the_interpreter(python):
    """Contexts, states, handles, listeners and daemon threads at the end of a script: status 0, nothing on
    stderr."""
    done = python("""
        import threading, hvd
        hvd.init()
        hvd.register_listener(print)
        other = hvd.Context()
        state = hvd.elastic.ObjectState(a=1)
        sampler = hvd.elastic.ElasticSampler(10)
        iteration = iter(sampler)
        next(iteration)
        handle = hvd.allreduce_async(bytearray(10), op=hvd.Sum)
        def work():
            while True:
                other.allreduce(bytearray(8), "x", hvd.Sum)
        threading.Thread(target=work, daemon=True).start()
        driver = hvd.driver.Driver(["true"], np=1, hosts="localhost:1")
        print("end")
    """)
    assert done.stdout == "end\n"


# At the end of the interpreter, after what atexit calls: time for threads of the library to call into it, if
# there are any.
LAST = """
        class Last:
            def __del__(self, write=__import__("os").write, sleep=__import__("time").sleep):
                if gate is not None:
                    write(gate, b"x")
                sleep(1)
        last = Last()
"""


def test_a_driver_ends_with_the_interpreter(python):
    """Without that, a line of a worker's would be brought by a thread of the library: the end of the process
    by a signal."""
    done = python(f"""
        import threading, hvd
        gate = None
        {LAST}
        said = threading.Event()
        driver = hvd.driver.Driver(["sh", "-c", "while :; do echo line; done"], np=1, hosts="localhost:1",
                                   output=lambda *line: said.set(), log=lambda *line: None, stop_grace=1)
        driver.start()
        assert said.wait(30)
        print("end")
    """)
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_a_context_ends_with_the_interpreter(tmp_path):
    """Its news come from a thread of the library, and none may come once the interpreter is going down."""
    os.mkfifo(tmp_path / "gate")
    script = textwrap.dedent(f"""
        import os, hvd
        gate = os.open({str(tmp_path / "gate")!r}, os.O_RDWR)
        hvd.init()
        rank = hvd.rank()
        try:
            hvd.barrier()
        except hvd.HorovodInternalError:  # rank 0 is out of it, and gone
            pass
        if rank == 1:
            os.read(gate, 1)  # until rank 0 is going down
            os._exit(0)
        hvd.register_listener(lambda event: None)
        {LAST}
        raise KeyError("uncaught")
    """)

    class Processes(hvd.driver.Launcher):
        def __init__(self):
            self.ends, self.processes = queue.Queue(), []

        def start(self, request):
            process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, **request.environment, "PYTHONPATH": str(PACKAGE)})
            self.processes.append(process)
            threading.Thread(target=self.watch, args=(request.worker, process)).start()

        def watch(self, worker, process):
            said = process.communicate()[1]
            driver.worker_exited(worker, process.returncode % 256)
            self.ends.put((process.returncode, said))

        def stop(self, worker, force):
            for process in self.processes:
                process.kill()

    launcher = Processes()
    with hvd.driver.Driver(launcher=launcher, np=2, discover=lambda: {"here": 2}, restart=False,
                           log=lambda *line: None) as driver:
        driver.start()
        ends = [launcher.ends.get(timeout=60 * PATIENCE)]
        if "uncaught" not in ends[0][1]:  # that was rank 1
            ends = [launcher.ends.get(timeout=60 * PATIENCE)]
    assert ends[0][0] == 1 and "KeyError: 'uncaught'" in ends[0][1] and "Fatal" not in ends[0][1], ends


def test_a_context_manager_shuts_down_or_aborts():
    with hvd.Context() as context:
        assert context.rank() == 0
    assert context.closed
    with pytest.raises(KeyError):
        with hvd.Context() as context:
            raise KeyError("x")
    assert context.closed


@pytest.mark.parametrize("options, match", [({"no_such_option": 1}, "no_such_option"),
                                            ({"rank": "many"}, "rank"),
                                            ({"init_timeout": -1.0}, "init_timeout"),
                                            ({"operation_timeout": [1]}, "expected str, int"),
                                            ({"rank": 2**70}, "64-bit"), ({"host": "a\0b"}, "NUL"), ])
def test_options_that_are_wrong(options, match):
    with pytest.raises(hvd.InvalidError, match=match):
        hvd.Context(**options)


def test_log_goes_to_logging_or_a_callback(python):
    done = python("""
        import logging, hvd
        logging.basicConfig(level=1, format="%(name)s %(levelno)s %(message)s")
        lines = []
        hvd.Context(log_level="trace", log=lambda level, line: lines.append((level, line))).shutdown()
        assert lines and all(isinstance(level, int) and line for level, line in lines), lines
        hvd.init(log_level="trace")
    """)
    assert "hvd " in done.stderr


def test_events(job):
    listening = threading.Event()

    def rank(context):
        seen, arrived = [], threading.Event()
        number = context.register_listener(lambda event: (seen.append(event), arrived.set()),
                                           hvd.EventKind.PEER_LOST)
        descriptor = context.event_fd()
        assert descriptor >= 0 and context.next_event() is None
        if context.rank() == 1:
            assert listening.wait(30)
            context.abort("lost on purpose")
            return None
        listening.set()
        assert arrived.wait(30)
        context.remove_listener(number)

        import asyncio

        async def first():
            async for event in context.events():
                return event

        event = asyncio.run(asyncio.wait_for(first(), 30))
        assert event.kind == seen[0].kind == hvd.EventKind.PEER_LOST and event.message == seen[0].message
        return event.message

    assert "rank 1" in job(2, rank)[0]


def test_an_iterator_of_events_ends_beside_another(job):
    """The one that is left hears what comes afterwards."""
    listening = threading.Event()

    def rank(context):
        if context.rank() == 1:
            assert listening.wait(30 * PATIENCE)
            context.abort("lost on purpose")
            return None

        import asyncio

        async def first():
            async for event in context.events():
                if event.kind == hvd.EventKind.PEER_LOST:
                    return event.message

        async def both():
            stays, ends = asyncio.create_task(first()), asyncio.create_task(first())
            await asyncio.sleep(0)  # each runs until it waits
            ends.cancel()
            await asyncio.wait([ends])
            listening.set()
            return await asyncio.wait_for(stays, 30 * PATIENCE)

        return asyncio.run(both())

    assert "rank 1" in job(2, rank)[0]


def test_timeline(tmp_path):
    with hvd.Context() as context:
        context.start_timeline(str(tmp_path / "trace.json"))
        context.allreduce(np.ones(3), "seen")
        context.stop_timeline()
    assert any("seen" in path.read_text() for path in tmp_path.iterdir())


def test_a_state_that_lives_to_the_end_goes_before_the_modules(python):
    """It calls back for what its callbacks keep, for which the interpreter has to be whole."""
    done = python("""
        import atexit

        atexit.register(lambda: print(state._handle.closed))  # called last
        import hvd
        from hvd import elastic

        hvd.init()
        state = elastic.State()
        state.register_reset_callbacks([lambda: None])
        state.commit()
    """)
    assert (done.stdout, done.stderr) == ("True\n", "")
