"""DLPack both ways: what other libraries' tensors are taken as, and what hvd.Array gives to them."""

import ctypes
import sys

import numpy as np
import pytest

import hvd
from hvd.borrowing import borrow
from hvd.tensors import CODES


class Provider:
    """Has DLPack and nothing else."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_the_flag_of_dlpack_is_believed(alone):
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises((hvd.InvalidError), match="read-?only|for writeable"):  # NumPy's, before 2.1
        hvd.allreduce_(Provider(frozen))
    assert frozen.tolist() == [1, 1, 1]


def test_immutable_producers_are_read_and_never_written(alone):
    """The real ones are in test_jax.py. Their capsules have no flag; a class under theirs is theirs, too."""
    theirs = type("Array", (Provider,), {"__module__": "jaxlib._jax"})
    values = np.arange(3.0)
    for array in (theirs(values), type("Mine", (theirs,), {})(values)):
        assert hvd.allreduce(array, op=hvd.Sum, prescale_factor=5.0).tolist() == [0, 5, 10]
        for write in (lambda: hvd.allreduce_(array, op=hvd.Sum, prescale_factor=5.0),
                      lambda: hvd.broadcast_(array), lambda: hvd.grouped_allreduce_([np.ones(1), array]),
                      lambda: hvd.broadcast_variables([array]), lambda: hvd.allreduce(np.ones(3), out=array),
                      lambda: hvd.elastic.ArrayState(w=array)):
            with pytest.raises(hvd.InvalidError, match="immutable"):
                write()
    assert values.tolist() == [0, 1, 2]


def test_dlpack_is_not_copied(alone):
    values = np.arange(4.0)
    provider = Provider(values)
    assert borrow(provider).tensor.data == values.ctypes.data
    assert hvd.allreduce_(provider, op=hvd.Sum, postscale_factor=3.0) is provider
    assert values.tolist() == [0, 3, 6, 9]
    result = hvd.allreduce(provider, op=hvd.Sum)
    assert isinstance(result, hvd.Array) and np.from_dlpack(result).tolist() == [0, 3, 6, 9]
    assert hvd.allgather(provider).tolist() == [0, 3, 6, 9]


def test_dlpack_of_what_does_not_fit(alone):
    with pytest.raises(hvd.InvalidError, match="not contiguous"):
        hvd.allgather(Provider(np.ones((4, 4))[:, ::2]))
    with pytest.raises(hvd.InvalidError, match="type code"):
        hvd.allgather(Provider(np.ones(2, np.complex64)))

    class Elsewhere(Provider):
        def __dlpack_device__(self):
            return (7, 0)

    with pytest.raises(hvd.InvalidError, match="device type 7"):
        hvd.allgather(Elsewhere(np.ones(2)))

    class Consumed(Provider):
        def __dlpack__(self, **options):
            options.pop("max_version", None)  # an older capsule, whose name is the one below
            capsule = super().__dlpack__(**options)
            set_name = ctypes.pythonapi.PyCapsule_SetName
            set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
            set_name(capsule, b"used_dltensor")
            return capsule

    with pytest.raises(hvd.InvalidError, match="consumed already"):
        hvd.allgather(Consumed(np.ones(2)))


def test_our_capsules_are_dlpacks(alone):
    """The other library keeps the memory, knows that it may be written, and gives it back in any thread."""
    result = hvd.allgather(Provider(np.arange(1, 7, dtype=np.float32)))
    assert isinstance(result, hvd.Array) and result.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(result)
    assert shared.tolist() == [1, 2, 3, 4, 5, 6]
    assert shared.ctypes.data == result.numpy().ctypes.data
    loan = borrow(Provider(result))
    assert loan.tensor.data == shared.ctypes.data and loan.shape == (6,)
    copied = np.from_dlpack(Provider(hvd.tensors.new(CODES["int16"], (2, 3))))
    assert copied.shape == (2, 3) and copied.dtype == np.int16
    with pytest.raises(BufferError, match="stream 1"):
        result.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"device \(2, 0\)"):
        result.__dlpack__(dl_device=(2, 0))


@pytest.mark.skipif(not hvd.compiled, reason="without the compiled module NumPy makes the capsules")
@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("dtype", CODES)
def test_capsules_of_every_dtype(alone, dtype, version):
    """bfloat16, too, which NumPy shares with nobody."""
    result = hvd.tensors.new(CODES[dtype], (2, 0, 3) if dtype == "int8" else (2, 3))
    count = sys.getrefcount(result)
    capsule = result.__dlpack__(max_version=version)
    assert ("dltensor_versioned" in repr(capsule)) == (version is not None)
    assert sys.getrefcount(result) == count + 1
    loan = borrow(Provider(result))
    assert loan.dtype == CODES[dtype] and loan.shape == result.shape
    copied = borrow(type("Copied", (Provider,), {
        "__dlpack__": lambda self, **options: result.__dlpack__(copy=True, **options)})(result))
    assert not result.nbytes or copied.tensor.data not in (None, loan.tensor.data)
    del capsule, loan, copied
    assert sys.getrefcount(result) == count


@pytest.mark.skipif(not hvd.compiled, reason="without the compiled module NumPy makes the capsules")
def test_memory_is_given_back_without_the_interpreters_lock(python):
    """As TensorFlow's threads do. ctypes lets go of the lock around a foreign function, and the interpreter's
    allocator ends a process that frees without it."""
    python("""
        import ctypes, sys, hvd
        from hvd.tensors import CODES, new
        result = new(CODES["float32"], (2, 3))
        count, capsule = sys.getrefcount(result), result.__dlpack__()
        pointer, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
        pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        taken, name = pointer(capsule, b"dltensor"), b"used_dltensor"
        rename(capsule, name)
        del capsule
        assert sys.getrefcount(result) == count + 1
        deleter = (ctypes.c_void_p * 8).from_address(taken)[7]  # after the tensor (48 bytes) and the context
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(taken)
        assert sys.getrefcount(result) == count
        """, environment={"PYTHONMALLOC": "debug"})
