"""hvd.jax: under jit and grad, with handlers that were compiled and without, through the loss of a worker."""

import re
import sys

import numpy as np
import pytest

from conftest import PACKAGE, PATIENCE

jax = pytest.importorskip("jax")
pytest.importorskip("jax.ffi")  # newer than 0.4.30

import jax.numpy as jnp  # noqa: E402

import hvd as plain  # noqa: E402
import hvd.jax as hvd  # noqa: E402


def run_ranks(tmp_path, source, size, **options):
    """Lines that the ranks print."""
    script = tmp_path / "worker.py"
    script.write_text(source)
    lines = []
    try:
        plain.driver.run([sys.executable, str(script)], np=size, elastic_timeout=60 * PATIENCE,
                         environment={"PYTHONPATH": str(PACKAGE), "JAX_PLATFORMS": "cpu"},
                         output=lambda rank, host, slot, is_stderr, line: lines.append(line),
                         timeout=150 * PATIENCE,
                         **{"hosts": f"localhost:{size}", "restart": False, **options})
    except plain.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    return lines


def test_the_handlers_are_compiled_where_there_is_a_compiler():
    assert hvd.implementation() == ("ffi", "")


def test_without_a_compiler_it_says_so(python, tmp_path):
    done = python("""
        import hvd.jax as hvd, jax, jax.numpy as jnp
        hvd.init()
        print(jax.jit(hvd.allreduce)(jnp.ones(2, jnp.bfloat16)).tolist(), hvd.implementation())
    """, environment={"CXX": "nowhere", "PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)})
    assert done.stdout == "[1.0, 1.0] ('callback', 'there is no C++ compiler (c++, g++, clang++, or what CXX names)')\n"


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float16", "bfloat16", "float32", "bool"])
def test_dtypes(alone, dtype):
    given = jnp.array([1, 0, 1], dtype)
    for result in (hvd.allreduce(given,
                                 op=hvd.Max), jax.jit(hvd.broadcast)(given), jax.jit(hvd.allgather)(given)):
        assert result.dtype == given.dtype and result.tolist() == given.tolist()


def test_nothing_is_written_into_an_argument(alone):
    given = jnp.arange(3.0)
    alias = jnp.asarray(given)
    times5 = lambda x: hvd.allreduce(x, hvd.Sum, prescale_factor=5.0)  # noqa: E731
    for call in (times5, jax.jit(times5), lambda x: jax.jit(times5, donate_argnums=0)(x + 0)):
        assert call(given).tolist() == [0, 5, 10]
        assert given.tolist() == alias.tolist() == [0, 1, 2]
    for write in (lambda: plain.allreduce_(given, op=plain.Sum, prescale_factor=5.0),
                  lambda: plain.broadcast_(given), lambda: plain.broadcast_variables([given]),
                  lambda: plain.elastic.ArrayState(w=given)):
        with pytest.raises(hvd.InvalidError, match="immutable"):
            write()
    assert given.tolist() == alias.tolist() == [0, 1, 2]
    assert plain.allreduce(given, op=plain.Sum, prescale_factor=5.0).tolist() == [0, 5, 10]


def test_control_flow_vmap_and_remat(alone):
    x = jnp.arange(4.0)
    assert jax.jit(lambda x: jax.lax.scan(lambda c, _: (hvd.allreduce(c) + 1, None), x, None, length=5)[0])(
        x).tolist() == [5, 6, 7, 8]
    assert jax.vmap(hvd.allreduce)(jnp.ones((2, 3))).tolist() == [[1] * 3] * 2
    with pytest.raises(NotImplementedError, match="vmap of hvd.jax.allgather"):
        jax.vmap(hvd.allgather)(jnp.ones((2, 3)))
    assert jax.jit(lambda x: jax.lax.cond(x[0] == 0, hvd.allreduce, lambda x: -x, x))(x).tolist() == [
        0, 1, 2, 3
    ]


def test_wrong_arguments(alone):
    for call, match in ((lambda: hvd.allreduce(jnp.ones(2, jnp.complex64)),
                         "dtype complex64"), (lambda: hvd.allreduce(jnp.ones(1), op=9), "op 9"),
                        (lambda: hvd.allreduce(jnp.ones(1), prescale_factor=0),
                         "prescale_factor is 0"), (lambda: hvd.allgather(jnp.ones(
                             ())), "expected 1 to 8 dimensions"),
                        (lambda: hvd.allgather(jnp.ones(1), rows=-1),
                         "rows is -1"), (lambda: hvd.broadcast(jnp.ones(1), -1), "root_rank is -1"),
                        (lambda: hvd.allreduce(jnp.ones(1), name=""),
                         "name ''"), (lambda: hvd.alltoall(jnp.ones(1), jnp.ones(1)), "splits: float32"),
                        (lambda: jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())
                         (jnp.ones(1)), "MAX has no gradient")):
        with pytest.raises(hvd.InvalidError, match=match):
            call()


def test_what_fails_within_a_program_is_hvds_error(alone):
    """And the program after it runs."""
    good = jax.jit(hvd.allreduce)
    for call, match in ((lambda x: hvd.broadcast(x, 5),
                         "root"), (lambda x: hvd.allreduce(x, name="hvd.mine"),
                                   "hvd.mine"), (lambda x: hvd.allgather(x, rows=2),
                                                 "3 rows came, and the program was compiled for 2"),
                        (lambda x: hvd.alltoall(x, jnp.array([2])), "splits")):
        with pytest.raises(hvd.InvalidError, match=match), hvd.errors():
            jax.block_until_ready(jax.jit(call)(jnp.ones(3)))
        with hvd.errors():
            assert good(jnp.ones(3)).tolist() == [1, 1, 1]


def test_a_state_of_trees(alone):
    tree = {
        "w": jnp.arange(3.0), "layers": [jnp.ones((2, 2), jnp.bfloat16),
                                         np.arange(2), 7, None], "s": jnp.float32(2)
    }
    state = hvd.elastic.JaxState(params=tree, key=jax.random.key(5), step=0, name="x")
    before = jax.random.normal(state.key)
    state.restore()
    state.commit()
    revision = state.revision
    state.params = jax.tree.map(lambda leaf: leaf + 1, state.params)
    state.params["w"] = state.params["w"] * 3
    state.key, state.step = jax.random.split(state.key)[0], 9
    state.restore()
    assert state.revision == revision and state.step == 0 and jax.random.normal(state.key) == before
    assert state.params["w"].tolist() == [0, 1, 2] and state.params["layers"][0].dtype == jnp.bfloat16
    assert type(state.params["layers"][1]) is np.ndarray and state.params["layers"][2:] == [7, None]
    assert state.params["s"].shape == () and isinstance(state.params["w"], jax.Array)
    state.params = {"w": jnp.ones(5), "new": jnp.zeros(1)}  # another structure
    state.commit()
    state.params = {"w": jnp.ones(7), "new": jnp.ones(1)}  # another shape
    state.restore()
    assert state.params["w"].shape == (5,) and state.params["new"].tolist() == [0]
    state.params["more"] = jnp.ones(1)
    with pytest.raises(hvd.InvalidError, match="another structure than was assigned"):
        state.commit()
    with pytest.raises(hvd.InvalidError, match="traced value"):
        jax.jit(lambda x: setattr(state, "params", {"w": x}))(jnp.ones(1))


COLLECTIVES = """
import os
import hvd as plain
context = plain.init()
if context.rank() == 1:
    os.environ["HVD_JAX_FFI"] = "0"  # what is sent does not depend on the way it goes
import jax, jax.numpy as jnp, numpy as np
import hvd.jax as hvd
rank, size = hvd.rank(), hvd.size()
assert hvd.implementation()[0] == ("callback" if rank == 1 else "ffi")
each = np.arange(1.0, size + 1)

@jax.jit
def all_of_them(x):
    tree = hvd.allreduce({"a": x, "b": [x.astype(jnp.bfloat16), jnp.int32(rank)]}, op=hvd.Sum)
    independent = [hvd.allreduce(x * i, op=hvd.Max) for i in range(1, 9)]  # in this order, on every rank
    scattered = hvd.reducescatter(jnp.tile(x, (size + 1, 1)), op=hvd.Sum)
    return (tree, independent, hvd.broadcast(x, 2), hvd.allgather(x), hvd.allgather(x[:1 + rank % 2], rows=20), scattered,
            hvd.alltoall(jnp.arange(2.0 * size) + 10 * rank), hvd.alltoall(jnp.arange(3.0) + rank, jnp.array([0, 1, 2]), rows=6),
            hvd.place())

x = jnp.full(2, 1.0 + rank)
tree, independent, root, gathered, padded, scattered, swapped, (sent, received), place = jax.block_until_ready(all_of_them(x))
assert tree["a"].tolist() == [each.sum()] * 2 and tree["b"][0].tolist() == [each.sum()] * 2 and tree["b"][1] == 3
assert [i.tolist() for i in independent] == [[size * f] * 2 for f in range(1, 9)]
assert root.tolist() == [3, 3] and gathered.tolist() == [1, 1, 2, 2, 3, 3]
assert padded.tolist() == [1, 2, 2, 3] + [0] * 16
assert scattered.tolist() == [[each.sum()] * 2] * (2 if rank == 0 else 1)
assert swapped.tolist() == [10 * r + 2 * rank + i for r in range(size) for i in range(2)]
assert received.tolist() == [rank] * size and place.tolist() == [rank, size]
assert sent.tolist() == [[0] * 6, [0, 1, 2, 0, 0, 0], [1, 2, 2, 3, 3, 4]][rank]

def gradient(function, *shape):
    x = jnp.full(shape or (size, 2), 3.0)
    return jax.jit(jax.grad(lambda x: (function(x) * (1.0 + rank)).sum()))(x).tolist()

total, mean = each.sum(), each.mean()
assert gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)) == [[total] * 2] * size
assert gradient(lambda x: hvd.allreduce(x)) == [[mean] * 2] * size
assert gradient(lambda x: hvd.allgather(x)) == [[mean] * 2] * size
assert gradient(lambda x: hvd.allgather(x, rows=50)) == [[mean] * 2] * size
assert gradient(lambda x: hvd.broadcast(x, 1)) == [[mean * (rank == 1)] * 2] * size
assert gradient(lambda x: hvd.reducescatter(x)) == [[e] * 2 for e in each]
assert gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)) == [[size * e] * 2 for e in each]
assert gradient(lambda x: hvd.alltoall(x)) == [[e] * 2 for e in each]
assert gradient(lambda x: hvd.alltoall(x, jnp.array([size, 0, 0]), rows=99)[0]) == [[1.0] * 2] * size
try:
    with hvd.errors():
        jax.jit(lambda x: hvd.allreduce(x, name="shapes"))(jnp.ones(1 + rank)).block_until_ready()
    print("no mismatch")
except hvd.MismatchError as error:
    assert "shapes" in str(error)
with hvd.errors():
    assert jax.jit(hvd.allreduce)(x).tolist() == [mean] * 2
print("fine", flush=True)
hvd.shutdown()
"""


def test_collectives_and_gradients_on_three_ranks(tmp_path):
    lines = run_ranks(tmp_path, COLLECTIVES, 3)
    assert lines == ["fine"] * 3, "\n".join(lines)


TRAINING = """
import os, signal
import jax, jax.numpy as jnp, numpy as np
import hvd.jax as hvd
hvd.init()
random = np.random.default_rng(1)
inputs = random.normal(size=(64, 5)).astype(np.float32)
targets = (inputs @ np.arange(1.0, 6.0) + 0.5).astype(np.float32)
traces = []

@jax.jit
def step(params, momentum):
    traces.append(1)
    rank, size = hvd.place()
    mine = (jnp.arange(64) % size == rank).astype(jnp.float32)  # each sample on one rank, whatever the size

    def loss(params):
        error = (jnp.asarray(inputs) @ params["w"] + params["b"] - targets) ** 2
        return (error * mine).sum() / 64

    value, gradients = jax.value_and_grad(loss)(params)
    value, gradients = hvd.allreduce((value, gradients), op=hvd.Sum)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 0.02 * m, params, momentum), momentum, value

params = {"w": jnp.zeros(5), "b": jnp.zeros(())}
state = hvd.elastic.JaxState(params=params, momentum=jax.tree.map(jnp.zeros_like, params), step=0, sizes=[])

@hvd.elastic.run
def train(state):
    while state.step < 30:
        if state.step == 11 and hvd.size() == 4 and hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        state.params, state.momentum, value = step(state.params, state.momentum)
        state.step += 1
        state.sizes = state.sizes + [hvd.size()]
        if state.step % 5 == 0:
            state.commit()
    return float(value)

value = train(state)
w, b, mw, mb = np.zeros(5), 0.0, np.zeros(5), 0.0
for _ in range(30):
    error = inputs @ w + b - targets
    mw, mb = 0.9 * mw + 2 * inputs.T @ error / 64, 0.9 * mb + 2 * error.sum() / 64
    w, b = w - 0.02 * mw, b - 0.02 * mb
assert np.allclose(state.params["w"], w, atol=1e-4) and np.allclose(state.params["b"], b, atol=1e-4), (state.params, w, b)
assert len(traces) == 1, "compiled anew"
assert state.sizes == [4] * 10 + [3] * 20, state.sizes
print("same", np.asarray(state.params["w"]).tobytes().hex(), flush=True)
hvd.shutdown()
"""


def test_a_jitted_step_through_the_loss_of_a_worker(tmp_path):
    """Four workers become three by SIGKILL: the numbers are those of one that is never killed, and nothing is
    compiled again."""
    lines = run_ranks(tmp_path, TRAINING, 4, hosts=None, discover=lambda: {"localhost": 4}, min_np=3,
                      max_np=4)
    ends = [line for line in lines if line.startswith("same")]
    assert len(ends) == 3 and len(set(ends)) == 1, "\n".join(lines)


def test_the_manuals_examples(tmp_path):
    manual = (PACKAGE.parents[1] / "docs" / "jax.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", manual, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        lines = run_ranks(tmp_path, block + "\nprint('ran', flush=True)\nhvd.shutdown()\n", 2)
        assert lines.count("ran") == 2, block + "\n".join(lines)
