"""What is taken as a tensor without a copy, and what is refused with a reason."""

import array
import ctypes
import math
import mmap
import weakref

import numpy as np
import pytest

import hvd
from hvd import _submit
from hvd.collectives import operation
from hvd.borrowing import borrow
from hvd.tensors import CODES

torch = None
try:
    import torch
except ImportError:
    pass


@pytest.mark.parametrize("dtype", [name for name in CODES if name != "bfloat16"])
def test_every_dtype_of_numpy(alone, dtype):
    values = np.array([[1, 0, 1], [0, 1, 1]], dtype)
    loan = borrow(values)
    assert loan.tensor.data == values.ctypes.data and loan.shape == (2, 3)
    result = hvd.allreduce(values, op=hvd.Max)
    assert result.dtype == values.dtype and (result == values).all()
    gathered = hvd.allgather(values)
    assert gathered.dtype == values.dtype and (gathered == values).all()


def test_in_place_is_the_same_memory(alone):
    values = np.arange(6, dtype=np.float32)
    assert hvd.allreduce_(values, op=hvd.Sum, postscale_factor=2.0) is values
    assert values.tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("thing, dtype, shape", [
    (bytearray(5), "uint8", (5,)), (array.array("d", [1, 2]), "float64", (2,)),
    (array.array("l", [1, 2]), "int64", (2,)), ((ctypes.c_float * 3)(), "float32", (3,)),
    ((ctypes.c_int16 * 2 * 3)(), "int16", (3, 2)), (memoryview(bytearray(8)).cast("i"), "int32", (2,)),
    (mmap.mmap(-1, 16), "uint8", (16,)), (array.array("f"), "float32", (0,)),
])
def test_buffers(alone, thing, dtype, shape):
    loan = borrow(thing, writable=True)
    assert (hvd.tensors.NAMES[loan.dtype], loan.shape) == (dtype, shape)
    del loan
    result = hvd.allreduce(thing, op=hvd.Sum)
    assert isinstance(result, memoryview) and bytes(result) == bytes(thing)


def test_read_only_is_fine_as_input_alone(alone):
    assert hvd.allgather(b"abc").tobytes() == b"abc"
    with pytest.raises(hvd.InvalidError, match="read-only"):
        hvd.allreduce_(b"abc", op=hvd.Sum)
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert hvd.allreduce(frozen).tolist() == [1, 1, 1]
    with pytest.raises(hvd.InvalidError, match="read-only"):
        hvd.broadcast_(frozen)


@pytest.mark.parametrize("thing, match", [
    (np.ones((4, 4))[::2, ::2], "not contiguous"), (np.ones((2, 3), order="F"), "not contiguous"),
    (np.ones(2, np.complex128), "complex128"), (np.array(["a"]), "<U1"), (np.array([object()]), "object"),
    (np.ones(2, ">f4"), ">f4"), (np.ones([1] * 9), "9 dimensions"),
    (memoryview(bytearray(8))[::2], "not contiguous"), (memoryview(bytearray(16)).cast("P"), "format 'P'"),
])
def test_what_does_not_fit_is_a_value_error(alone, thing, match):
    with pytest.raises(ValueError, match=match):
        hvd.allgather(thing)


def unaligned(count):
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize("make, match", [
    (lambda: np.ones((4, 4), np.float32)[::2, ::2], "not contiguous"), (lambda: np.ones(2, ">f4"), ">f4"),
    (lambda: np.frombuffer(bytes(8), np.float32), "read-only"),
    (lambda: np.ones([1] * 9, np.float32), "9 dimensions"),
    (lambda: np.ones(2, np.complex64), "complex64"), ])
def test_among_arrays_that_fit_one_that_does_not(alone, make, match):
    """Their dtypes are known already: such arrays are read by their layout."""
    others = [np.full(3, 2, dtype) for dtype in (np.float32, np.int64)]
    for _ in range(2):
        hvd.grouped_allreduce_(others, op=hvd.Sum)
        with pytest.raises(ValueError, match=match):
            hvd.grouped_allreduce_([*others, make()], op=hvd.Sum)
        for other in others:  # they are free again
            other.resize(4, refcheck=False)
            other.resize(3, refcheck=False)
    assert others[0].tolist() == [2, 2, 2]


def test_arrays_of_every_layout_that_fits(alone):
    things = [unaligned(3), np.float32(4).reshape(()), np.empty((0, 3), np.float32),
              np.ones((2, 2), np.float32).T[:1, :1]]
    for _ in range(2):  # a dtype is known from the second time on
        things[0][:] = 5
        found = hvd.grouped_allreduce(things, op=hvd.Sum)
        assert [f.shape for f in found] == [(3,), (), (0, 3), (1, 1)] and found[0].tolist() == [5, 5, 5]


@pytest.mark.parametrize("thing", [None, 3, "text", [1, 2], {"a": 1}, object()])
def test_what_is_no_array_is_a_type_error(alone, thing):
    with pytest.raises(TypeError, match="expected a NumPy array"):
        hvd.allgather(thing)


def test_freed_memory_is_refused(alone):
    view = memoryview(bytearray(4))
    view.release()
    with pytest.raises(ValueError, match="released"):
        hvd.allreduce(view)
    mapped = mmap.mmap(-1, 16)
    mapped.close()
    with pytest.raises(ValueError):
        hvd.allreduce(mapped)


@pytest.mark.parametrize("make, free", [
    (lambda: bytearray(8), lambda data: data.extend(b"more")),
    (lambda: array.array("B", bytes(8)), lambda data: data.append(1)),
    (lambda: mmap.mmap(-1, 8), lambda data: data.close()),
    (lambda: memoryview(bytearray(8)), lambda data: data.release()),
    (lambda: np.zeros(8), lambda data: data.resize(1000, refcheck=False)),
])
def test_memory_can_not_be_freed_while_an_operation_has_it(job, make, free):
    def rank(context):
        data = make()
        if context.rank() == 0:
            handle = context.allreduce_async_(data, "x", hvd.Sum)
            with pytest.raises((BufferError, ValueError)):
                free(data)
            context.barrier("now")
            handle.wait()
            del handle
            free(data)
        else:
            context.barrier("now")
            context.allreduce_(data, "x", hvd.Sum)
        return True

    assert job(2, rank) == [True, True]


def test_what_a_state_holds_stays_where_it_is(alone):
    state, data, plain = hvd.elastic.State(), np.arange(4.0), bytearray(8)
    state.add_array("data", data)
    state.add_value("plain", plain)
    state.commit()
    for free in (lambda: data.resize(1000, refcheck=False), lambda: plain.extend(b"more")):
        with pytest.raises((BufferError, ValueError)):
            free()
    data[:] = 0
    state.restore()
    assert data.tolist() == [0, 1, 2, 3]
    state.remove("data")
    state.close()
    data.resize(1000, refcheck=False)
    plain.extend(b"more")


@pytest.mark.parametrize("call", [
    lambda: hvd.broadcast_(bytearray(1), 2**32), lambda: hvd.broadcast_object(1, 2**32),
    lambda: hvd.allreduce(bytearray(1), op=hvd.Sum + 2**32),
    lambda: hvd.allreduce(bytearray(1), priority=2**40), lambda: hvd.alltoall(bytearray(1), [2**64 + 1]),
    lambda: hvd.ProcessSet([2**32]), lambda: hvd.barrier(timeout=-1),
    lambda: hvd.barrier(timeout=float("nan")), lambda: hvd.barrier_async().wait(-1),
])
def test_numbers_that_c_would_cut(alone, call):
    with pytest.raises(hvd.InvalidError):
        call()


def test_no_time_is_too_long(alone):
    hvd.barrier(timeout=float("inf"))
    hvd.barrier_async().wait(1e300)


def test_results_outlive_their_operation_and_context(job):
    def rank(context):
        return context.allgather(np.full((2, 2), context.rank(), np.int32)), context.allgather(b"ab")

    for numbers, letters in job(2, rank):
        assert numbers.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]] and bytes(letters) == b"abab"


def test_out(job):
    def rank(context):
        room = np.full((8, 2), -1.0)
        result = context.allgather(np.full((context.rank() + 1, 2), context.rank(), np.float64), "g",
                                   out=room)
        assert result.base is room and result.shape == (3, 2)
        with pytest.raises(hvd.InvalidError, match="rows"):
            context.allgather(np.ones((2, 2)), "h", out=np.empty((1, 2)))
        with pytest.raises(hvd.InvalidError):
            context.allreduce(np.ones(2), "i", out=np.ones(2, np.float32))
        return result[:, 0].tolist()

    assert job(2, rank) == [[0, 1, 1]] * 2


def test_array_gives_itself_in_many_forms(alone):
    values = hvd.tensors.new(CODES["int32"], (2, 3))
    values.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
    assert values.tolist() == [[1, 2, 3], [4, 5, 6]] and len(values) == 2 and values.ndim == 2
    assert values.memoryview().shape == (2, 3)
    assert np.asarray(values).base is not None
    assert "int32" in repr(values)
    empty = hvd.tensors.new(CODES["float32"], (0, 3))
    assert empty.numpy().shape == (0, 3) and empty.tolist() == []


def test_bfloat16_of_other_packages(alone):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.ones(3, ml_dtypes.bfloat16)
    assert hvd.allgather(values).dtype == values.dtype


def shrunk(tensor):
    """Its storage ends before it does."""
    tensor.untyped_storage().resize_(40)
    return tensor


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
class TestTorch:
    def test_is_not_copied(self, alone):
        values = torch.arange(4.0)
        assert borrow(values).tensor.data == values.data_ptr()
        assert hvd.allreduce_(values, op=hvd.Sum, postscale_factor=2.0) is values
        assert values.tolist() == [0, 2, 4, 6]

    @pytest.mark.parametrize(
        "dtype",
        ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"])
    def test_dtypes(self, alone, dtype):
        values = torch.tensor([1, 0, 1]).to(getattr(torch, dtype))
        for result in (hvd.allreduce(values, op=hvd.Max), hvd.allgather(values), hvd.broadcast(values)):
            assert result.dtype == values.dtype and torch.equal(result, values)

    def test_parameters(self, alone):
        parameter = torch.nn.Parameter(torch.ones(2))
        hvd.broadcast_(parameter)
        assert hvd.allreduce(parameter).tolist() == [1, 1]

    @pytest.mark.parametrize("make, match", [(lambda: torch.ones(4, 4).t()[1:], "not contiguous"),
                                             (lambda: torch.ones(2, dtype=torch.complex64), "dtype"),
                                             (lambda: torch.ones(2, 2).to_sparse(), "layout"),
                                             (lambda: torch.ones(2, device="meta"), "device meta"), ])
    def test_what_does_not_fit(self, alone, make, match):
        with pytest.raises(ValueError, match=match):
            hvd.allgather(make())

    @pytest.mark.parametrize("make, match", [
        (lambda: torch.ones(2, requires_grad=True) * 2, "autograd"),
        (lambda: torch.ones(4, 4).t()[1:], "not contiguous"),
        (lambda: torch._neg_view(torch.ones(3)), "lazy view"), (lambda: shrunk(torch.ones(20)[10:]), "40"), ])
    def test_among_tensors_that_fit_one_that_does_not(self, alone, make, match):
        others = [torch.full((3,), 2.0), torch.nn.Parameter(torch.ones(2)), torch.ones(4)[2:]]
        for _ in range(2):
            hvd.grouped_allreduce_(others, op=hvd.Sum)
            with pytest.raises(ValueError, match=match):
                hvd.grouped_allreduce_([*others, make()], op=hvd.Sum)
        assert [other.tolist() for other in others] == [[2, 2, 2], [1, 1], [1, 1]]

    def test_other_memory_while_an_operation_runs(self, job):
        """The operation keeps what it was given: nothing that is allocated meanwhile lies there."""

        def rank(context):
            data = torch.ones(1000)
            if context.rank() == 0:
                handle = context.allreduce_async_(data, "x", hvd.Sum)
                data.data = torch.zeros(1)
                others = [torch.full((1000,), 7.0) for _ in range(20)]
                context.barrier("now")
                handle.wait()
                return all(bool((other == 7).all()) for other in others)
            context.barrier("now")
            return context.allreduce_(data, "x", hvd.Sum)[0].item() == 2

        assert job(2, rank) == [True, True]

    @pytest.mark.parametrize("move", [
        lambda p: setattr(p, "data", torch.zeros(8)), lambda p: setattr(p, "data", p.data.double()),
        lambda p: (p.untyped_storage() if hasattr(p, "untyped_storage") else p.storage()).resize_(0),
    ])
    def test_a_state_notices_other_memory(self, alone, move):
        parameter = torch.nn.Parameter(torch.ones(8))
        state = hvd.elastic.State()
        state.add_array("weights", parameter)
        state.commit()
        kept = parameter.data
        move(parameter)
        trained = []
        for call in (state.commit, state.save, state.restore, state.sync,
                     lambda: hvd.elastic.run(trained.append)(state)):
            with pytest.raises(hvd.InvalidError, match="'weights' has other memory"):
                call()
        assert not trained
        state.remove("weights")
        parameter.data = kept.new_ones(8)
        state.add_array("weights", parameter)
        state.commit()

    def test_freed_storage(self, alone):
        values = torch.ones(8)
        (values.untyped_storage() if hasattr(values, "untyped_storage") else values.storage()).resize_(0)
        with pytest.raises(ValueError, match="was it freed"):
            hvd.allreduce(values)

    def test_those_that_come_again_are_looked_at_again(self, alone):
        """What the compiled module remembers of a tensor holds as long as the tensor is what it was."""
        factor = torch.ones(1, requires_grad=True)
        changes = [
            (lambda t: t.untyped_storage().resize_(0), "was it freed"),
            (lambda t: t.untyped_storage().resize_(8), "was it freed"),
            (lambda t: t.mul_(factor), "autograd"),
            (lambda t: setattr(t, "data", torch.ones(8)[::2]), "not contiguous"),
            (lambda t: setattr(t, "data", torch._neg_view(torch.ones(4))), "lazy view"),
            (lambda t: setattr(t, "data", torch.ones(4, dtype=torch.complex64)), "dtype"),
        ]
        for change, match in changes:
            tensors = [torch.ones(4), torch.ones(2)]
            for turn in range(5):
                assert hvd.grouped_allreduce_(tensors, op=hvd.Sum, prescale_factor=2.0) is not None
            assert [t.tolist() for t in tensors] == [[32] * 4, [32] * 2]
            change(tensors[0])
            for _ in range(3):
                with pytest.raises(ValueError, match=match):
                    hvd.grouped_allreduce_(tensors, op=hvd.Sum)

    def test_other_memory_of_one_that_comes_again(self, alone):
        tensor = torch.ones(4)
        for turn in range(1, 9):
            hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=3.0)
            if turn % 4 == 0:
                before = tensor.data
                tensor.data = torch.full((turn,), float(turn))
                hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=2.0)
                assert tensor.tolist() == [2.0 * turn] * turn
                assert before.tolist() == ([81.0] * 4 if turn == 4 else [8.0 * 3**4] * 4)

    def test_another_tensor_in_the_place_of_one_that_came_again(self, alone):
        base, there = torch.ones(4), set()
        for _ in range(20):
            tensor = base[:]
            for _ in range(4):
                hvd.allreduce_(tensor, op=hvd.Sum)
            there.add(id(tensor))
            del tensor
            other = torch._neg_view(base)
            there.add(id(other))
            with pytest.raises(ValueError, match="lazy view"):
                hvd.allreduce_(other, op=hvd.Sum)
            del other
        assert len(there) < 20  # addresses were used again

    def test_nothing_is_kept_of_those_that_came_again(self, alone):
        tensor = torch.ones(4)
        gone = [weakref.ref(tensor), weakref.ref(tensor.untyped_storage())]
        for _ in range(5):
            hvd.allreduce_(tensor, op=hvd.Sum)
        del tensor
        assert [ref() for ref in gone] == [None, None]

    @pytest.mark.parametrize("dtype", [
        "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
        "uint16", "uint32", "uint64"])
    def test_both_ways_give_the_same(self, alone, monkeypatch, dtype):
        """By the compiled module, for tensors that are new and that come again, and by ctypes."""
        if not hasattr(torch, dtype):
            pytest.skip(f"this PyTorch has no {dtype}")
        shapes = [(3,), (), (0, 2), (2, 1, 2), (1, 1)]
        found = []
        for submit in (_submit.submit, _submit._submit):
            monkeypatch.setattr(operation, "submit", submit)
            tensors = [torch.arange(max(1, math.prod(s))).to(getattr(torch, dtype))[:math.prod(s)].reshape(s)
                       for s in shapes]
            tensors.append(torch.arange(6).to(getattr(torch, dtype))[2:])
            for _ in range(4):
                hvd.grouped_allreduce_(tensors, op=hvd.Max)
                if dtype != "bool":  # each dtype multiplies in its own way
                    hvd.grouped_allreduce_(tensors, op=hvd.Sum, prescale_factor=3.0)
                found.append([(t.dtype, t.shape, t.tolist()) for t in tensors])
        assert found[:4] == found[4:]
