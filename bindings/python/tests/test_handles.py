"""Operations under way: waited for, asked, awaited, dropped, interrupted."""

import asyncio
import gc
import os
import queue
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import hvd
from conftest import PACKAGE, PATIENCE


def test_wait_and_poll(job):
    def rank(context):
        first = context.allreduce_async(np.full(2, context.rank() + 1.0), "a", hvd.Sum)
        second = context.allgather_async(np.array([context.rank()]), "b")
        assert second.wait().tolist() == [0, 1] and first.result().tolist() == [3, 3]
        assert first.done() and first.poll() and first.exception() is None and "done" in repr(first)
        return first.wait() is first.wait()

    assert job(2, rank) == [True, True]


def test_a_wait_that_is_too_short_names_who_is_missing(job):
    def rank(context):
        context.barrier("begin")
        if context.rank() == 0:
            handle = context.allreduce_async(np.ones(1), "late", hvd.Sum)
            assert not handle.done() and handle.exception() is None
            with pytest.raises(TimeoutError) as caught:
                handle.wait(0.05)
            context.barrier("go")
            assert handle.wait(30)[0] == 2
            return str(caught.value)
        context.barrier("go")
        return context.allreduce(np.ones(1), "late", hvd.Sum)[0]

    assert "late" in job(2, rank)[0]


def test_an_operation_has_a_deadline_of_its_own(job):
    over = threading.Event()

    def rank(context):
        if context.rank() == 0:
            with pytest.raises(hvd.WaitTimeoutError, match="late"):
                context.allreduce(np.ones(1), "late", timeout=0.1)
            over.set()
        assert over.wait(30)
        context.barrier("end")

    job(2, rank)


def test_await(job):
    def rank(context):
        async def main():
            one, two = await asyncio.gather(context.allreduce_async(np.ones(1), "a", hvd.Sum)._await(),
                                            context.allgather_async(np.array([context.rank()]), "b")._await())
            return one[0], two.tolist(), await context.barrier_async("c")

        return asyncio.run(main())

    assert job(2, rank) == [(2, [0, 1], None)] * 2


def test_await_more_operations_than_there_are_threads(job):
    def rank(context):
        async def main():
            handles = [context.allreduce_async(np.array([float(i)]), f"x{i}", hvd.Sum) for i in range(200)]
            order = handles if context.rank() else handles[::-1]
            return sum([float((await handle)[0]) for handle in order])

        return asyncio.run(main())

    assert job(2, rank) == [2.0 * sum(range(200))] * 2


def test_a_cancelled_await_leaves_the_operation(job):
    def rank(context):
        async def main():
            handle = context.allreduce_async(np.ones(1), "x", hvd.Sum)
            if context.rank() == 0:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(handle._await(), 0.05)
                context.barrier("go")
            return (await handle)[0]

        if context.rank() == 1:
            context.barrier("go")
        return asyncio.run(main())

    assert job(2, rank) == [2, 2]


def test_an_error_comes_out_of_await(job):
    def rank(context):
        async def main():
            with pytest.raises(hvd.MismatchError):
                await context.allreduce_async(np.ones(1 + context.rank()), "x")

        asyncio.run(main())

    job(2, rank)


def until_freed(context, kept):
    """How many of these arrays are not let go of, although calls on the context follow."""
    deadline = time.monotonic() + 20 * PATIENCE
    own = context.add_process_set(hvd.ProcessSet([context.rank()]))
    while any(array() is not None for array in kept) and time.monotonic() < deadline:
        context.allreduce(np.ones(1), "sweep", process_set=own)
    return sum(array() is not None for array in kept)


def test_a_dropped_handle_keeps_its_memory_until_the_end(job):
    def rank(context):
        if context.rank() == 0:
            kept = []
            for i in range(50):
                array = np.full(1000, 1.0)
                context.allreduce_async(array, f"x{i}", hvd.Sum)  # nobody holds the handle
                kept.append(weakref.ref(array))
                del array
            gc.collect()
            assert all(array() is not None for array in kept)
            context.barrier("go")
            context.barrier("end")
            return until_freed(context, kept)
        context.barrier("go")
        total = sum(context.allreduce(np.full(1000, 2.0), f"x{i}", hvd.Sum).sum() for i in range(50))
        context.barrier("end")
        return total

    assert job(2, rank) == [0, 150000.0]


def test_dropped_handles_are_freed_by_several_threads(job):
    def rank(context):
        kept = []

        def drop(thread):
            for i in range(100):
                array = np.ones(8)
                kept.append(weakref.ref(array))
                context.allreduce_async(array, f"x{thread}.{i}", hvd.Sum)

        threads = [threading.Thread(target=drop, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        context.barrier("end")
        return until_freed(context, kept)

    assert job(2, rank) == [0, 0]


def test_others_run_while_one_waits(job):
    """The interpreter's lock is free during a wait: rank 1 comes only when the counting thread has counted.
    """

    def rank(context):
        if context.rank() == 0:
            counted, stop = threading.Event(), threading.Event()

            def count():
                numbers = 0
                while not stop.is_set():
                    numbers += 1
                    if numbers == 10000:
                        counted.set()

            thread = threading.Thread(target=count)
            thread.start()
            handle = context.barrier_async("x")
            waiter = threading.Thread(target=handle.wait)
            waiter.start()
            assert counted.wait(30)
            context.barrier("go")
            waiter.join(30)
            stop.set()
            thread.join()
        else:
            context.barrier("go")
            context.barrier("x")

    job(2, rank)


def test_waits_from_several_threads(job):
    def rank(context):
        handle = context.allreduce_async(np.ones(4), "x", hvd.Sum)
        results = []
        threads = [threading.Thread(target=lambda: results.append(handle.wait()[0])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    assert job(2, rank) == [[2.0] * 8] * 2


def test_ctrl_c_ends_a_wait():
    script = """if True:
        import os, sys, hvd
        hvd.init()
        if hvd.rank() == 1:
            hvd.barrier("end")
            sys.exit()
        try:
            print("waiting", os.getpid(), flush=True)
            hvd.barrier("nobody else comes")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        hvd.barrier("end")
    """
    lines = queue.Queue()
    with hvd.driver.Driver([sys.executable, "-c", script], np=2, hosts="localhost:2", restart=False,
                           environment={"PYTHONPATH": str(PACKAGE)},
                           output=lambda rank, host, slot, is_stderr, line: lines.put(line)) as driver:
        driver.start()
        word, pid = lines.get(timeout=30 * PATIENCE).split()
        assert word == "waiting"
        os.kill(int(pid), signal.SIGINT)
        assert lines.get(timeout=30 * PATIENCE) == "interrupted"
