"""States and the run loop, without losses: whole jobs are in test_jobs.py."""

import gc
import weakref

import numpy as np
import pytest

import hvd
from hvd import elastic


def test_array_state_is_restored_in_place(alone):
    weights, layers = np.arange(3.0), [np.ones(2, np.float32), bytearray(b"ab")]
    state = elastic.ArrayState(weights=weights, layers=layers, named={"x": np.zeros(1)}, epoch=3, note="n")
    state.commit()
    assert state.revision == 1
    state.weights += 1
    state.layers[0][:] = 7
    state.layers[1][0] = 0
    state.named["x"][0] = 5
    state.epoch, state.note = 9, None
    state.restore()
    assert weights.tolist() == [0, 1, 2] and layers[0].tolist() == [1, 1] and layers[1] == b"ab"
    assert state.named["x"][0] == 0 and (state.epoch, state.note) == (3, "n")
    assert state.statistics().restores == 1
    for wrong in ("weights", "layers"):
        with pytest.raises(AttributeError, match="in place"):
            setattr(state, wrong, 1)


def test_restore_without_a_commit(alone):
    """It gives what the state was made with, as in Horovod."""
    array, sampler = np.arange(3.0), elastic.ElasticSampler(10, batch_size=2)
    state = elastic.ArrayState(a=1, array=array, sampler=sampler)
    state.a, array[:] = 2, 7
    sampler.record_batch(0, 2)
    state.restore()
    assert (state.a, array.tolist(), sampler.info().processed, state.revision) == (1, [0, 1, 2], 0, 0)
    state.a = 3
    state.commit()
    state.a = 4
    state.restore()
    assert state.a == 3
    with pytest.raises(hvd.InvalidError, match="without a commit"):
        elastic.State().restore()


def test_a_state_is_not_closed_around_its_own_call(alone):
    state = elastic.State()

    def get():
        state.close()

    array = np.ones(4)
    state.add_array("a", array)
    state.add_object("o", get, lambda thing: None)
    with pytest.raises(hvd.InvalidError, match="close: another call"):
        state.commit()
    assert "a" in state._memory
    state.remove("o")
    state.commit()
    state.close()
    with pytest.raises(hvd.ClosedError):
        state.commit()


def test_a_state_that_goes_ends_before_its_memory(alone, monkeypatch):
    from hvd._handles import Native

    state, ends = elastic.State(), []

    class Memory(bytearray):
        def __del__(self):
            ends.append("memory")

    state.add_array("a", Memory(8))
    close = Native.close
    monkeypatch.setattr(Native, "close", lambda self: ends.append("handle") or close(self))
    del state
    gc.collect()
    assert ends[:2] == ["handle", "memory"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_never_began_has_failed():
    """Ctrl-C comes at the first instruction of what C calls: ctypes gives 0 then, which is no success."""
    from hvd import _abi

    for prototype, arguments in ((_abi.SaveFn, (None, _abi.WriteFn(), None)), (_abi.LoadFn, (None, None, 0)),
                                 (_abi.ResetFn, (None, )), (_abi.LostFn, (None, b"x"))):
        answers = {0: 0, 1: 1, 7: 1}
        for given, expected in answers.items():
            assert _abi.fails_unless_done(prototype)(lambda *_: given)(*arguments) == expected

        @_abi.fails_unless_done(prototype)
        def interrupted(*_):
            raise KeyboardInterrupt

        assert interrupted(*arguments) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_unknown_object_is_not_saved():
    from hvd import _abi
    from hvd.elastic import _objects

    assert _objects._save(1 << 40, _abi.WriteFn(), None) == 1 and _objects._load(1 << 40, None, 0) == 1


def test_what_is_added_later_comes_back_without_a_commit(alone):
    """As the variables of states for Keras and TensorFlow are: by add_memory, after the attributes."""
    memory, array, value = np.arange(3.0), np.arange(2.0), [1]
    state = elastic.ObjectState(a=1)

    def put(data):
        nonlocal memory
        memory = np.frombuffer(data).copy()

    state.add_memory("memory", lambda: memory, put)
    state.add_array("array", array)
    state.add_object("value", lambda: value[0], lambda new: value.__setitem__(0, new))
    memory, value[0], state.a = memory + 5, 7, 2
    array += 5
    state.restore()
    assert (memory.tolist(), array.tolist(), value, state.a) == ([0, 1, 2], [0, 1], [1], 1)
    memory = memory + 1
    state.commit()
    memory = memory + 1
    state.restore()
    assert memory.tolist() == [1, 2, 3] and state._initial is None
    state.add_array("after a commit", np.ones(1))
    assert state._initial is None


class OfHorovod(elastic.State):
    """As classes under Horovod's State are written: all by its own save, restore and sync."""

    def __init__(self):
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.value, self.saved, self.calls = 1, 1, []

    def save(self):
        self.saved = self.value

    def restore(self):
        self.calls.append("restore")
        self.value = self.saved

    def sync(self):
        self.calls.append("sync")
        self.value = self._bcast_object(self.value)

    def reset(self):
        self.calls.append("reset")


def test_a_class_with_its_own_save_restore_and_sync(alone):
    state = OfHorovod()
    state.register_reset_callbacks([lambda: state.calls.append("callback")])
    failures = [hvd.HorovodInternalError("lost"), hvd.HostsUpdatedInterrupt("hosts")]

    @elastic.run
    def train(state):
        state.value += 1
        state.commit()
        state.value += 100
        if failures:
            raise failures.pop(0)
        return state.value

    with pytest.raises(hvd.HvdError):  # a worker without a driver has nobody to join again
        train(state)
    assert state.calls == ["sync", "restore"] and state.value == 2 and state.revision == 1


def test_who_joins_a_running_job_keeps_no_copy_of_what_a_sync_overwrites(alone, monkeypatch):
    monkeypatch.setattr(hvd.Context, "generation", lambda self: 2)
    weights = np.zeros(3)
    state = elastic.ArrayState(weights=weights, epoch=4)
    state.add_memory("memory", lambda: weights, lambda data: None)
    assert list(state._initial) == ["epoch"]
    state.epoch = 5
    with pytest.raises(hvd.InvalidError, match="'weights' comes from the others"):
        state.restore()
    assert state.epoch == 5
    state.sync()
    weights += 1
    state.commit()
    weights += 1
    state.restore()
    assert weights.tolist() == [1, 1, 1] and state.epoch == 5
    values = elastic.ObjectState(epoch=1)
    values.epoch = 2
    values.restore()
    assert values.epoch == 1


def test_names_that_are_taken(alone):
    for name in ("commit", "_handle", "revision"):
        with pytest.raises(hvd.InvalidError, match="attribute"):
            elastic.ObjectState(**{name: 1})
    with pytest.raises(hvd.InvalidError):
        elastic.ArrayState(fine=np.ones((3, 3))[:, 0])
    state = elastic.State()
    state.add_array("a", np.ones(1))
    with pytest.raises(hvd.InvalidError):
        state.add_array("a", np.ones(1))
    state.remove("a")
    state.add_array("a", np.ones(1))
    with pytest.raises(hvd.InvalidError):
        state.remove("b")


def test_values_are_kept_where_they_are(alone):
    state = elastic.State()
    step = np.zeros(1, np.int64)
    state.add_value("step", step)
    with pytest.raises(hvd.InvalidError):
        state.add_value("nothing", np.zeros(0, np.int64))
    with pytest.raises(hvd.InvalidError):
        state.add_value("too large", bytearray(65537))
    step[0] = 7
    state.commit()
    step[0] = 8
    state.restore()
    assert step[0] == 7


def test_what_the_codec_refuses_comes_out_of_commit(alone):
    state = elastic.ObjectState(a=1)
    state.commit()
    state.a = object()
    with pytest.raises(hvd.InvalidError, match="json codec takes no"):
        state.commit()
    state.restore()
    assert state.a == 1 and state.revision == 1


def test_objects_by_pickle(alone):
    state = elastic.ObjectState(codec="pickle", a=1j)
    state.commit()
    state.a = None
    state.restore()
    assert state.a == 1j


def test_a_state_that_is_dropped_is_freed(alone):
    weights = np.ones(2)
    state = elastic.ArrayState(weights=weights, epoch=1)
    state.register_reset_callbacks([lambda: None])
    state.commit()
    dropped = weakref.ref(state)
    del state
    gc.collect()
    assert dropped() is None
    elastic.ArrayState(weights=weights, epoch=1).commit()


def test_sync_makes_all_equal(job):
    def rank(context):
        mine = np.full(4, float(context.rank()))
        state = elastic.ArrayState(context=context, mine=mine, who=context.rank())
        state.sync()
        return mine.tolist(), state.who

    assert job(3, rank) == [([0.0] * 4, 0)] * 3


def test_ranks_with_other_keys_are_a_mismatch(job):
    def rank(context):
        state = elastic.ObjectState(context=context, **{f"key{context.rank()}": 1})
        with pytest.raises(hvd.MismatchError, match="key"):
            state.sync()
        context.barrier()

    job(2, rank)


def test_run_gives_the_result_and_passes_arguments(alone):
    @elastic.run
    def train(state, a, *, b):
        return state.x, a, b

    assert train(elastic.ObjectState(x=1), 2, b=3) == (1, 2, 3)
    assert train.__name__ == "train"


def test_run_starts_again_as_horovod_does(alone):
    state, calls, resets = elastic.ObjectState(x=0), [], []
    state.register_reset_callbacks([lambda: resets.append(state.x)])

    @elastic.run
    def train(state):
        calls.append(state.x)
        if len(calls) == 1:
            state.x = 5
            state.commit()
            state.x = 6
            raise hvd.HorovodInternalError("as if a peer were lost")
        return state.x

    with pytest.raises(hvd.HvdError):  # alone, without a driver, there is no next generation
        train(state)
    assert calls == [0] and state.x == 5


@pytest.mark.parametrize(
    "error",
    [KeyError("mine"), KeyboardInterrupt(),
     hvd.MismatchError("m"), SystemExit(3)])
def test_an_error_of_the_function_ends_the_run(alone, error):
    @elastic.run
    def train(state):
        raise error

    with pytest.raises(type(error)) as caught:
        train(elastic.ObjectState(x=0))
    assert caught.value is error
    assert elastic.run(lambda state: 5)(elastic.ObjectState(x=0)) == 5  # the next run is a new one


def test_one_run_at_a_time(alone):
    @elastic.run
    def train(state):
        with pytest.raises(hvd.InvalidError):
            elastic.run(lambda state: None)(elastic.ObjectState(y=0))
        return 1

    assert train(elastic.ObjectState(x=0)) == 1


def test_another_array_takes_the_keys_place(alone):
    state = hvd.elastic.State()
    first, next, count = np.arange(3.0), np.zeros(3), np.array([7])
    state.add_array("w", first)
    state.add_value("count", count)
    shard = state.add_shard("m", 4, allocate=lambda n: np.ones(n, "float32"))
    state.add_object("o", lambda: 1, lambda new: None)
    state.commit()
    state.set_array("w", next)
    state.set_array("count", np.array([0]))
    moments = np.zeros(4, "float32")
    state.set_array("m", moments)
    first[:], count[0] = 9, 9
    state.restore()
    assert list(next) == [0, 1, 2] and list(first) == [9, 9, 9] and count[0] == 9
    assert shard.array is moments and list(moments) == [1, 1, 1, 1]
    moments[0] = next[0] = 5
    state.commit()
    moments[0] = next[0] = 6
    state.restore()
    assert next[0] == 5 and moments[0] == 5
    for key, array, words in (("w", np.zeros(2), r"float64\[2\] in host memory: expected float64\[3\]"),
                              ("m", np.zeros(4), r"float64\[4\] .* expected float32\[4\]"),
                              ("none", next, "'none' is no array"), ("o", next, "'o' is no array")):
        with pytest.raises(hvd.InvalidError, match=words):
            state.set_array(key, array)
    state.restore()
    assert next[0] == 5 and moments[0] == 5


def test_shards_of_a_worker_that_is_alone(alone):
    state = elastic.ArrayState(step=0)
    shard = state.add_shard("m", 10, "float64")
    assert (shard.offset, len(shard), shard.array.tolist()) == (0, 10, [0.0] * 10)
    shard.array[:] = np.arange(10)
    state.commit()
    shard.array[:] = -1
    state.restore()
    assert shard.array.tolist() == list(range(10)) and state.revision == 1
    statistics = state.statistics()
    assert (statistics.shard_bytes, statistics.copy_bytes, statistics.fed_bytes) == (80, 0, 0)
    assert [elastic.shard_range(10, rank, 4) for rank in range(4)] == [(0, 3), (3, 3), (6, 2), (8, 2)]
    with pytest.raises(hvd.InvalidError, match="'m' is taken"):
        state.add_shard("m", 10)
    with pytest.raises(hvd.InvalidError, match="expected a range within"):
        state.add_shard("n", 10, split=lambda rank, size: (5, 6))
    with pytest.raises(hvd.InvalidError, match="copies is 99"):
        state.add_shard("n", 10, copies=99)
    with pytest.raises(hvd.InvalidError, match="copies=1 and parity=3: expected one of them"):
        state.add_shard("n", 10, copies=1, parity=3)
    with pytest.raises(hvd.InvalidError, match="parity is 1: expected the parity of 2 to 64 shards"):
        state.add_shard("n", 10, parity=1)
    state.add_shard("n", 10, parity=3).array[:] = 2
    state.commit()
    with pytest.raises(hvd.InvalidError, match="expected 10 in one"):
        state.add_shard("n", 10, allocate=lambda length: np.zeros((length, 2)))
    state.remove("m")
    state.commit()
