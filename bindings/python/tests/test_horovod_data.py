"""horovod.data of the package `horovod` that is ours, and small parts of horovod.common."""

import re
import sys
import threading

import pytest

from conftest import PACKAGE, PATIENCE

sys.path.insert(0, str(PACKAGE.parent / "horovod"))

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader  # noqa: E402

LIMIT = 30 * PATIENCE


class Numbers(BaseDataLoader):
    """0 to count - 1 in each pass, which ends by ZeroDivisionError if it shall."""

    def __init__(self, count, fails=False):
        self.count, self.fails = count, fails
        self.loaded, self.ended = threading.Semaphore(0), threading.Event()

    def __len__(self):
        return self.count

    def _iterate(self):
        try:
            for number in range(self.count):
                self.loaded.release()
                yield number
            assert not self.fails or 1 / 0
        finally:
            self.ended.set()

    def _process_batch(self, batch):
        return batch, threading.current_thread()


class Asynchronous(AsyncDataLoaderMixin, Numbers):
    pass


HERE = threading.current_thread()


@pytest.mark.parametrize("size", [0, 1, 64])
def test_each_pass_has_all_batches_in_order(size):
    loader = Asynchronous(size, False, 100)
    assert len(loader) == 100 and loader.async_loader_queue_size == size
    for _ in range(3):
        assert list(loader) == [(number, HERE) for number in range(100)]
    assert list(Numbers(3)) == [(number, HERE) for number in range(3)]


def test_batches_are_loaded_ahead_as_many_as_may_be():
    loader = Asynchronous(async_loader_queue_size=4, count=100)
    batches = iter(loader)
    assert next(batches)[0] == 0
    for _ in range(1 + 4 + 1):  # the one that was taken, those that are ready, and one that waits for room
        assert loader.loaded.acquire(timeout=LIMIT)
    assert not loader.loaded.acquire(blocking=False)
    batches.close()
    assert loader.ended.wait(LIMIT), "its thread goes on"


def test_a_pass_that_was_left_leaves_nothing_to_the_next():
    loader = Asynchronous(2, count=10)
    for number, _ in loader:
        if number == 3:
            break
    assert loader.ended.wait(LIMIT)
    assert [number for number, _ in loader] == list(range(10))


def test_close_ends_the_pass_and_its_thread():
    loader = Asynchronous(2, count=1000)
    batches = iter(loader)
    next(batches)
    (mine,) = loader._passes
    loader.close_async_loader()
    assert not mine.thread.is_alive() and loader.ended.is_set()
    assert list(batches) == [] and not loader._passes
    loader.close_async_loader()


@pytest.mark.parametrize("size", [0, 3])
def test_an_exception_of_the_loader_comes_out_behind_its_batches(size):
    loader, seen = Asynchronous(size, count=5, fails=True), []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            seen.extend(number for number, _ in loader)
    assert seen == [*range(5), *range(5)]


def test_a_queue_of_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="async_loader_queue_size is -1"):
        Asynchronous(-1, count=3)
    for method in (len, list):
        with pytest.raises(NotImplementedError):
            method(BaseDataLoader())


def test_an_unfinished_pass_does_not_keep_a_program_from_ending(python):
    python("""
        import sys
        sys.path.insert(0, sys.argv[1])
        from horovod.data import AsyncDataLoaderMixin, BaseDataLoader

        class Loader(AsyncDataLoaderMixin, BaseDataLoader):
            def _iterate(self):
                while True:
                    yield 1

        batches = iter(Loader(2))
        next(batches)
        """, PACKAGE.parent / "horovod")


def test_basics(alone):
    from horovod.common.basics import HorovodBasics

    basics = HorovodBasics(__file__, "mpi_lib")
    assert (basics.rank(), basics.size(), basics.local_rank(), basics.is_initialized()) == (0, 1, 0, True)
    assert basics.gloo_built() and not basics.ddl_built()
    with pytest.raises(AttributeError, match="_comm_process_set_id"):
        basics._comm_process_set_id


def test_an_interruption_skips_no_sync():
    from horovod.common.exceptions import HostsUpdatedInterrupt

    assert HostsUpdatedInterrupt("hosts").skip_sync is False


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_compressor_of_the_programs_own(python, framework):
    """Of Horovod's base class, and in an allreduce."""
    pytest.importorskip(framework)
    python("""
        import importlib, sys
        sys.path.insert(0, sys.argv[1])
        framework, hvd, compression = [importlib.import_module(name) for name in (
            sys.argv[2], f"horovod.{sys.argv[2]}", f"horovod.{sys.argv[2]}.compression")]

        class Halves(compression.Compressor):
            @staticmethod
            def compress(tensor):
                return tensor / 2, "mine"

            @staticmethod
            def decompress(tensor, ctx):
                assert ctx == "mine"
                return tensor * 8

        hvd.init()
        assert hvd.allreduce(framework.ones(3), compression=Halves).numpy().tolist() == [4, 4, 4]
        for kind in (compression.NoneCompressor, compression.FP16Compressor):
            assert hvd.allreduce(framework.ones(3), compression=kind).numpy().tolist() == [1, 1, 1]
        for method in (compression.Compressor.compress, compression.Compressor.decompress):
            try:
                method(*[1, 2][:2 if method.__name__ == "decompress" else 1])
                raise SystemExit("it does something")
            except NotImplementedError:
                pass
        """, PACKAGE.parent / "horovod", framework,
           environment={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}, timeout=200)


PAGE = (PACKAGE.parents[1] / "docs" / "horovod.md").read_text()
MISSING = PAGE.split("\n## What is missing\n")[1].split("\n## ")[0]


def test_the_page_names_what_no_attribute_may_be_called():
    from hvd.elastic import State

    horovods = {"register_reset_callbacks", "on_reset", "on_hosts_updated", "commit", "check_host_updates",
                "save", "restore", "sync", "reset"}
    mine = {name for name in dir(State) if not name.startswith("_")} - horovods
    (said,) = re.findall(r"- An attribute of a state (.*?)\n- ", MISSING, re.S)
    assert mine == set(re.findall(r"`(\w+)`", said))


def test_modules_that_are_missing_are_missing():
    (said,) = re.findall(r"- Modules: (.*?)\n- ", MISSING, re.S)
    for name in re.findall(r"`(horovod\.[\w.]+|horovod\.ray\.{[\w,]+})`", said):
        package, braces, inner = name.partition(".{")
        for part in inner.rstrip("}").split(",") if braces else [""]:
            place = PACKAGE.parent.joinpath("horovod", *package.split("."), part)
            there = place.is_dir() or place.with_suffix(".py").exists()
            assert there == (package == "horovod.spark"), place
