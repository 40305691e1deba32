"""hvd.lightgbm: the stock wheel's distributed training over the library, through the loss of a worker."""

import re
import sys

import numpy as np
import pytest

from conftest import PACKAGE, PATIENCE

lightgbm = pytest.importorskip("lightgbm")

import hvd as plain  # noqa: E402
import hvd.lightgbm as hvd  # noqa: E402

DATA = """
import os, signal, sys
import numpy as np, lightgbm
import hvd.lightgbm as hvd
random = np.random.default_rng(1)
rows = random.normal(size=(3000, 6))
targets = rows[:, 0] * 3 + np.sin(3 * rows[:, 1]) * 2 + rows[:, 2] * rows[:, 3]
parameters = {"objective": "regression", "num_leaves": 15, "verbosity": -1, "num_threads": 1, "seed": 7}

def mine(rank, size):
    return lightgbm.Dataset(rows[rank::size], targets[rank::size])

def quality(booster):
    return 1 - np.var(booster.predict(rows) - targets) / np.var(targets)
"""


def run_ranks(tmp_path, source, size, **options):
    script = tmp_path / "worker.py"
    script.write_text(source)
    lines = []
    try:
        plain.driver.run([sys.executable, str(script)], np=size, elastic_timeout=60 * PATIENCE,
                         environment={"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
                         output=lambda rank, host, slot, is_stderr, line: lines.append(line),
                         timeout=150 * PATIENCE,
                         **{"hosts": f"localhost:{size}", "restart": False, **options})
    except plain.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    return lines


def test_alone_it_is_lightgbm(alone):
    names = {"np": np, "lightgbm": lightgbm}
    exec(DATA, names)
    booster = hvd.elastic_train(names["parameters"], names["mine"], 20)
    reference = lightgbm.train(names["parameters"], names["mine"](0, 1), 20)
    assert booster.num_trees() == 20 and np.allclose(booster.predict(names["rows"]),
                                                     reference.predict(names["rows"]))


EQUAL = DATA + """
hvd.init()
for learner in ("data", "voting"):
    booster = hvd.elastic_train({**parameters, "tree_learner": learner}, mine, 30)
    # A voting learner's inner nodes bear local sums, on LightGBM's own network, too: what they predict is the
    # same.
    model = booster.model_to_string() if learner == "data" else booster.predict(rows).tobytes()
    assert len(set(hvd.allgather_object(model))) == 1, learner
    assert booster.num_trees() == 30, (learner, booster.num_trees())
    assert quality(booster) > 0.9, quality(booster)
# Categories, bagging and more features than a small message holds; a network of one's own making.
wide = np.concatenate([rows, random.normal(size=(3000, 300))], axis=1)
wide[:, 5] = random.integers(0, 7, 3000)
with hvd.network() as distributed:
    assert distributed["num_machines"] == hvd.size()
    sets = lightgbm.Dataset(wide[hvd.rank()::hvd.size()], targets[hvd.rank()::hvd.size()], categorical_feature=[5])
    booster = lightgbm.train({**parameters, **distributed, "bagging_fraction": 0.7, "bagging_freq": 1}, sets, 5)
assert len(set(hvd.allgather_object(booster.model_to_string()))) == 1
print("fine", flush=True)
hvd.shutdown()
"""


def test_ranks_learn_the_same_model(tmp_path):
    lines = run_ranks(tmp_path, EQUAL, 3)
    assert lines.count("fine") == 3, "\n".join(lines)


KILLED = DATA + """
hvd.init()
sizes, rounds = [], []

def watch(environment):
    sizes.append(hvd.size())
    rounds.append(environment.iteration)
    if hvd.rank() == 1 and hvd.size() == 3 and environment.iteration == 17:
        os.kill(os.getpid(), signal.SIGKILL)

booster = hvd.elastic_train(parameters, mine, 40, commit_rounds=5, callbacks=[watch])
assert set(sizes[:17]) == {3} and set(sizes[-20:]) == {2}, sizes
assert booster.num_trees() == 40 and quality(booster) > 0.9, quality(booster)
assert rounds[:17] == list(range(17)) and rounds[-25:] == list(range(15, 40)), rounds  # from the commit at 15
import hashlib
print("model", hashlib.sha256(booster.model_to_string().encode()).hexdigest(), flush=True)
hvd.shutdown()
"""


def test_a_worker_is_killed(tmp_path):
    """Two of three go on from the last commit, and end with the same model."""
    lines = run_ranks(tmp_path, KILLED, 3, hosts=None, discover=lambda: {"localhost": 3}, min_np=2, max_np=3)
    models = [line for line in lines if line.startswith("model")]
    assert len(models) == 2 and len(set(models)) == 1, "\n".join(lines)


FAILURE = DATA + """
hvd.init()
if hvd.rank() == 1:
    def leave(environment):
        hvd.abort("on purpose")
    calls = [leave]
else:
    calls = []
try:
    with hvd.network() as distributed:
        lightgbm.train({**parameters, **distributed}, mine(hvd.rank(), hvd.size()), 100, callbacks=calls)
    print("trained on")
except hvd.HvdError as error:
    cause = type(error.__cause__).__name__
    assert cause == "LightGBMError", cause
    print(type(error).__name__, flush=True)
lightgbm.train(parameters, mine(0, 1), 2)  # without a network LightGBM is as before
os._exit(0)
"""


def test_a_lost_peer_within_a_round_is_an_error_of_lightgbm(tmp_path):
    lines = []
    script = tmp_path / "worker.py"
    script.write_text(FAILURE)
    with pytest.raises(plain.HvdError):  # nobody says that it is done
        plain.driver.run([sys.executable, str(script)], np=2, hosts="localhost:2", restart=False,
                         environment={"PYTHONPATH": str(PACKAGE)}, timeout=100 * PATIENCE,
                         output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    assert sorted(line for line in lines
                  if "[Info]" not in line) == ["ClosedError", "HorovodInternalError"], "\n".join(lines)


def test_wrong_arguments(alone):
    for options, match in (({"params": {"machines": "a:1,b:2"}}, "machines='a:1,b:2'"),
                           ({"commit_rounds": 0}, "commit_rounds is 0"), ({"params": {"num_machines": 2}},
                                                                          "num_machines=2"),
                           ({"init_model": "x"}, "init_model"), ({"num_boost_round": 1.5},
                                                                 "num_boost_round is 1.5")):
        with pytest.raises(hvd.InvalidError, match=re.escape(match)):
            hvd.elastic_train(**{"params": {}, "data": lambda rank, size: None, **options})
    with pytest.raises(TypeError, match="data: expected a function"):
        hvd.elastic_train({}, None)
    with pytest.raises(TypeError, match="expected it to give a lightgbm.Dataset, and not NoneType"):
        hvd.elastic_train({}, lambda rank, size: None)


def test_the_manuals_examples(tmp_path):
    manual = (PACKAGE.parents[1] / "docs" / "lightgbm.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", manual, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        lines = run_ranks(tmp_path, block + "\nprint('ran', flush=True)\nhvd.shutdown()\n", 2)
        assert lines.count("ran") == 2, block + "\n".join(lines)
