"""TensorFlow and Keras: operations, gradients, optimizers, callbacks; elastic training through a kill and a
join."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hvd
from conftest import PACKAGE, PATIENCE
from test_jobs import Job

pytest.importorskip("keras", exc_type=ImportError)
HERE = Path(__file__).parent
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1"
}


def has(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


def why_not(backend, module):
    if not has(module):
        return f"{module} is not installed"
    only = backend in ("torch", "jax") and importlib.metadata.version("keras").startswith("2.")
    return "Keras 2 is on TensorFlow alone" if only else ""


def tensorflow_version():
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return tuple(map(int, importlib.metadata.version(name).split(".")[:2]))
        except importlib.metadata.PackageNotFoundError:
            pass
    return 0, 0


ASYNCHRONOUS = tensorflow_version() >= (2, 13)
needs_tensorflow = pytest.mark.skipif(not has("tensorflow"), reason="TensorFlow is not installed")
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why_not(name, module)), reason=why_not(name, module)))
    for name, module in (("tensorflow", "tensorflow"), ("torch", "torch"), ("jax", "jax"), ("tf_keras",
                                                                                             "tf_keras"))
]


def chosen(backend):
    """The variables that choose it."""
    return {"TF_USE_LEGACY_KERAS": "1"} if backend == "tf_keras" else {"KERAS_BACKEND": backend}


def run(ranks, worker, *arguments, **environment):
    command = [hvd.hvdrun(), "-np", str(ranks), "--set", "restart=false", "--set", "start_timeout=200", "--",
               sys.executable, str(HERE / worker), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 * PATIENCE,
                          stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE), **QUIET, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_tensorflow
@pytest.mark.parametrize("ranks", [1, 3])
def test_operations(ranks):
    assert run(ranks, "tensorflow_ops.py").count("all as expected") == ranks


MANY = """
import tensorflow as tf
import hvd.tensorflow as hvd
hvd.init()
assert hvd._graph.operation.create is not None, hvd._graph.operation.reason
order = list(range(24))[:: 1 if hvd.rank() == 0 else -1]  # no node waits for another one
with tf.Graph().as_default():
    sums = {i: hvd.allreduce(tf.fill([2], float(i)), op=hvd.Sum, name=f"x{i}") for i in order}
    rows = {i: hvd.allgather(tf.fill([hvd.rank(), 1], i), name=f"y{i}") for i in order}
    bad = hvd.allreduce(tf.ones([hvd.rank() + 1]), name="bad")
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2, use_per_session_threads=True)
    with tf.compat.v1.Session(config=config) as session:
        found, gathered = session.run([sums, rows])
        try:
            session.run(bad)
            raise SystemExit("it was taken")
        except tf.errors.FailedPreconditionError as error:
            assert "shape [1] on rank 0" in str(error), error
assert all(found[i].tolist() == [2.0 * i] * 2 and gathered[i].tolist() == [[i]] for i in range(24)), found
print("all as expected", flush=True)
hvd.shutdown()
"""


@needs_tensorflow
def test_a_graph_with_more_operations_than_threads(tmp_path):
    if not ASYNCHRONOUS:
        pytest.skip("TensorFlow before 2.13 has no asynchronous kernels in its C interface")
    script = tmp_path / "many.py"
    script.write_text(MANY)
    assert run(2, script, HVD_OPERATION_TIMEOUT="60").count("all as expected") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras(backend, tmp_path):
    assert run(2, "keras_ops.py", tmp_path, **chosen(backend)).count("all as expected") == 2


@needs_tensorflow
@pytest.mark.parametrize(
    "source, error, said",
    [("hvd.allreduce(tf.constant('text'))", "InvalidError", "dtype string"),
     ("hvd.allreduce(tf.constant([1 + 2j]))", "InvalidError", "complex"),
     ("hvd.allreduce(tf.ones(2), average=True, op=hvd.Sum)", "InvalidError", "op or average"),
     ("hvd.allgather(tf.constant(1.0))", "InvalidError", "scalar"),
     ("hvd.broadcast_variables([tf.ones(2)], 0)", "TypeError", "tf.Variable"),
     ("hvd.broadcast(tf.ones(2), 7)", "InvalidError", "7"),
     ("hvd.DistributedGradientTape(tf.ones(2))", "TypeError", "GradientTape"),
     ("hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=0)", "InvalidError", "0"),
     ("hvd.DistributedGradientTape(tf.GradientTape(), num_groups=-1)", "InvalidError", "num_groups is -1"),
     ("hvd.DistributedGradientTape(tf.GradientTape(), groups=-2)", "InvalidError", "groups is -2"),
     ("hvd.DistributedGradientTape(tf.GradientTape(), groups=['a'])", "InvalidError", "list of lists"),
     ("hvd.allreduce(tf.ones(2), device_dense='cpu?')", "InvalidError", "device_dense is 'cpu?'"),
     ("hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), device_sparse=3)", "InvalidError",
      "device_sparse is 3"),
     ("hvd.DistributedOptimizer(7)", "TypeError", "optimizer"),
     ("hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)", "InvalidError", "op is Adasum"),
     ("hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)",
      "InvalidError", "op is Adasum"),
     ("hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), backward_passes_per_step=0)", "InvalidError", "0"),
     ("hvd.elastic.TensorFlowState()", "InvalidError", "tf.Variables"),
     ("hvd.elastic.TensorFlowState([tf.ones(2)])", "TypeError", "entry 0"),
     ("hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))", "InvalidError",
      "built"), ])
def test_bad_input_names_value_and_expectation(python, source, error, said):
    done = python(f"""
        import tensorflow as tf, hvd.tensorflow as hvd
        hvd.init()
        try:
            {source}
        except Exception as problem:
            assert type(problem).__name__ == {error!r} and {said!r} in str(problem), repr(problem)
            print("refused")
        assert float(hvd.allreduce(tf.constant(3.0))) == 3.0  # nothing is lost
        """, environment=QUIET, timeout=200)
    assert "refused" in done.stdout


@needs_tensorflow
def test_a_device_that_is_no_cpu_is_named_once(python):
    python("""
        import warnings
        import tensorflow as tf, hvd.tensorflow as hvd
        hvd.init()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for device in ("", "/cpu:0", "/job:localhost/device:CPU:0", "/gpu:0", "/GPU:1"):
                assert float(hvd.allreduce(tf.constant(3.0), device_dense=device)) == 3.0
                hvd.DistributedGradientTape(tf.GradientTape(), device_dense=device)
                hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), device_dense=device)
        said = [str(entry.message) for entry in found if "device_dense" in str(entry.message)]
        assert len(said) == 1 and "device_dense is '/gpu:0'" in said[0] and "host memory" in said[0], said
        """, environment=QUIET, timeout=200)


@needs_tensorflow
def test_state_of_variables(python):
    """In place, whatever memory TensorFlow gives a variable after an assignment."""
    python("""
        import tensorflow as tf, hvd.tensorflow as hvd
        hvd.init()
        v, w = tf.Variable([1.0, 2.0]), tf.Variable(tf.zeros([3], tf.bfloat16))
        b = tf.Variable(tf.constant(2.0, tf.bfloat16))
        state = hvd.elastic.TensorFlowState([v, w, b], epoch=3)
        v.assign([7.0, 8.0]); b.assign(9.0); state.epoch = 4; state.restore()  # what it was made with
        assert v.numpy().tolist() == [1, 2] and float(b) == 2 and state.epoch == 3
        state.save()
        v.assign([5.0, 6.0]); w.assign_add(tf.ones([3], tf.bfloat16)); state.epoch = 4
        kept = v.read_value()
        state.restore()
        assert v.numpy().tolist() == [1, 2] and float(w[0]) == 0 and state.epoch == 3
        assert kept.numpy().tolist() == [5, 6]  # another tensor's memory was not written
        v.assign_add([1.0, 1.0]); state.commit(); v.assign([0.0, 0.0]); state.restore()
        assert v.numpy().tolist() == [2, 3]
        """, environment=QUIET, timeout=200)


@needs_tensorflow
def test_tensors_and_arrays_share_memory(python):
    """Neither way is a copy made, and neither side may lose the memory or see the other write to it."""
    python("""
        import gc
        import numpy as np, tensorflow as tf, hvd.tensorflow as hvd
        from hvd import compiled
        from hvd.tensorflow import _bridge
        hvd.init()
        address = lambda array: array.ctypes.data
        shares = lambda dtype: compiled and (dtype != "bool" or tf.__version__ > "2.13")
        for dtype in ("bfloat16", "float16", "float32", "float64", "bool", "uint8", "int32", "int64", "uint16"):
            for shape in ([], [1], [3, 50], [0, 3]):
                tensor = tf.cast(tf.reshape(tf.range(int(np.prod(shape))) % 2, shape), dtype)
                array = _bridge.array_of(tensor)
                assert array.shape == tuple(shape) and array.dtype.name == dtype, (dtype, shape)
                assert not shape or 0 in shape or address(array) == address(_bridge.array_of(tensor))
                room = _bridge.empty(shape, array.dtype)
                room[...] = array
                where, back = address(room), _bridge.tensor_of(room)
                assert back.dtype == tensor.dtype and back.shape == tensor.shape
                assert np.array_equal(back.numpy(), tensor.numpy()) and bool(tf.reduce_all(back == tensor))
                may_differ = not shares(dtype) or not shape or not room.size
                assert may_differ or address(_bridge.array_of(back)) == where, (dtype, shape)
        array = _bridge.array_of(tf.fill([1 << 20], 3.0))  # it has the tensor
        gc.collect()
        others = [tf.fill([1 << 20], float(i)) for i in range(4)]
        assert (array == 3).all() and not array.flags.writeable
        room = _bridge.empty([1 << 20], np.float32)
        room[:] = 5
        tensor = _bridge.tensor_of(room)
        del room
        gc.collect()
        others = [np.zeros(1 << 20, np.float32) for _ in range(4)]
        assert bool(tf.reduce_all(tensor == 5))
        # TensorFlow would end the process at the first use of what is not aligned.
        odd = np.zeros(1025, np.float32)[1:]
        odd = odd if address(odd) % 64 else np.zeros(1026, np.float32)[2:]
        assert float(tf.reduce_sum(_bridge.tensor_of(odd) + 1)) == odd.size
        fixed = _bridge.empty([16], np.float32)
        fixed[:] = 1
        fixed.flags.writeable = False
        assert float(tf.reduce_sum(_bridge.tensor_of(fixed))) == 16
        variable = tf.Variable(tf.zeros([1 << 10]))
        kept = _bridge.array_of(variable)
        variable.assign_add(tf.ones([1 << 10]))
        variable.assign(tf.fill([1 << 10], 2.0))
        variable.scatter_nd_update([[0]], [9.0])
        variable.scatter_nd_update([[1]], [9.0])
        assert (kept == 0).all() and variable.numpy()[:3].tolist() == [9, 9, 2]
        """, environment=QUIET, timeout=200)


@needs_tensorflow
@pytest.mark.skipif(bool(why_not("torch", "torch") and why_not("jax", "jax")),
                    reason="Keras has no other backend here")
def test_keras_needs_no_tensorflow_for_its_compression(python):
    python("""
        import sys
        sys.modules["tensorflow"] = None
        import hvd.keras as hvd
        packed, context = hvd.Compression.fp16.compress(hvd._keras.keras.ops.ones(3))
        assert hvd._keras.dtype_of(packed) == "float16" and context == "float32"
        """, environment={**QUIET, "KERAS_BACKEND": "torch" if has("torch") else "jax"}, timeout=200)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(backend, slots, arguments, **limits):
        os.environ.update(QUIET, **chosen(backend))
        jobs.append(Job(tmp_path, slots, arguments, worker=HERE / "keras_elastic_worker.py", **limits))
        return jobs[-1]

    before = dict(os.environ)
    yield begin
    for job in jobs:
        job.close()
    os.environ.clear()
    os.environ.update(before)


def check(ends, epochs, steps):
    assert ends and all(end["agree"] and end["epoch"] == epochs for end in ends), ends
    # A step is counted in the state, and by the optimizer: no commit is of two minds.
    assert all(end["steps"] == end["iterations"] >= epochs * steps for end in ends), ends


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_worker_costs_the_others_one_commit(start, backend):
    job = start(backend, 2, [3, 6, "kill"], min_np=1, max_np=2)
    os.kill(job.wait("ready")["pid"], signal.SIGKILL)
    ends = job.end()
    check(ends, 3, 6)
    assert any(end["recoveries"] for end in ends)


@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_an_exception_of_a_callback_comes_out_of_the_run(start, backend):
    """As it was raised; its worker is lost to the others, who go on."""
    job = start(backend, 2, [3, 6, "raise"], min_np=1, max_np=2)
    assert job.wait("raised")["same"]
    ends = job.end()
    check(ends, 3, 6)
    assert any(end["recoveries"] for end in ends)


@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_a_new_host_is_taken_in(start, backend):
    job = start(backend, 1, [3, 6, "grow", 2], min_np=1, max_np=2)
    job.wait("train", size=1)
    job.set_slots(2)
    job.wait("train", size=2)
    ends = job.end()
    assert len(ends) == 2
    check(ends, 3, 6)


@needs_tensorflow
def test_the_manuals_examples(tmp_path):
    manual = (PACKAGE.parents[1] / "docs" / "tensorflow.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", manual, re.S)
    assert len(blocks) == 2
    for block in blocks:
        script = tmp_path / "example.py"
        script.write_text(block + "\nprint('ran', flush=True)\nhvd.shutdown()\n")
        assert run(2, script).count("ran") == 2
