"""What Horovod's scripts ask for besides collectives and states."""

import os

import pytest

import hvd
from hvd import _horovod

THREE = """
import pathlib, sys
import hvd
from hvd import _horovod
context = hvd.init()
pair = hvd.add_process_set([0, 2])
if pair.included():
    thing = hvd.broadcast_object({"from": hvd.rank()} if hvd.rank() == 2 else None, 2, process_set=pair)
    assert thing == {"from": 2}, thing
    try:
        hvd.broadcast_object(object(), 2, process_set=pair)
        print("taken")
    except hvd.InvalidError as error:
        assert "rank 2" in str(error)
    assert hvd.broadcast_object(hvd.rank(), 0, process_set=pair) == 0
assert hvd.is_homogeneous() and hvd.gloo_enabled() and not hvd.mpi_enabled()
assert hvd.join(hvd.local_rank()) in range(3)
print("fine", flush=True)
hvd.shutdown()
"""

def test_which_transports_there_are(alone):
    assert hvd.gloo_built() is True and hvd.gloo_enabled() is True and hvd.mpi_enabled() is False
    assert (hvd.ddl_built(), hvd.ccl_built(), hvd.rocm_built(), hvd.mpi_threads_supported()) == (False,) * 4
    usable = {report.name for report in hvd.backends() if report.usable}
    assert hvd.mpi_built() == bool({"mpi", "mpich"} & usable)
    assert bool(hvd.nccl_built()) == ("nccl" in usable) and (hvd.cuda_built() or "nccl" not in usable)
    assert hvd.is_homogeneous() is True
    hvd.start_timeline(os.devnull, mark_cycles=True)
    hvd.stop_timeline()

def test_its_variables_are_read_or_named_once_and_the_place_is_exported(python, tmp_path):
    timeline = tmp_path / "timeline"
    done = python("""
        import logging, os
        logging.basicConfig(format="%(message)s")
        import hvd
        hvd.init()
        print({name: value for name, value in sorted(os.environ.items()) if name.startswith("HOROVOD_")})
        hvd.shutdown()
    """, environment={"HOROVOD_TIMELINE": str(timeline), "HOROVOD_CYCLE_TIME": "1", "HOROVOD_AUTOTUNE": "1",
                      "HOROVOD_FUSION_THRESHOLD": "0"})
    assert done.stderr.count(
        "HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME: these variables of Horovod's have no effect") == 1
    assert "HOROVOD_TIMELINE" not in done.stderr and (tmp_path /
                                                      "timeline.0.json").read_text().startswith("[")
    assert "'HOROVOD_CROSS_RANK': '0'" in done.stdout and "'HOROVOD_RANK': '0', 'HOROVOD_SIZE': '1'" in done.stdout


@pytest.mark.parametrize(
    "variables, options",
    [({"HOROVOD_FUSION_THRESHOLD": "4096", "HOROVOD_LOG_LEVEL": "FATAL"
       }, {"fusion_threshold": 4096, "log_level": "error"}),
     ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "2.5"}, {"stall_warning": 2.5}),
     ({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "3"}, {"stall_warning": 0.0}),
     ({"HOROVOD_GLOO_IFACE": "eth0", "HOROVOD_RANK": "7", "HOROVOD_ELASTIC": "1"}, {"interface": "eth0"}),
     ({"HOROVOD_FUSION_THRESHOLD": "1", "HVD_FUSION_THRESHOLD": "2"}, {}), ])
def test_what_its_variables_mean(variables, options):
    said = []
    assert _horovod.options_of(variables, said.append) == {**_horovod.DEFAULTS, **options} and not said
    with hvd._options.NativeOptions(options):  # each of them is one that there is
        pass


@pytest.mark.parametrize("name, value, expected",
                         [("HOROVOD_FUSION_THRESHOLD", "much", "a number of bytes"),
                          ("HOROVOD_FUSION_THRESHOLD", "-1", "a number of bytes"),
                          ("HOROVOD_STALL_CHECK_TIME_SECONDS", "nan", "a number of seconds"),
                          ("HOROVOD_LOG_LEVEL", "7", "trace, debug")])
def test_a_variable_that_cannot_be_meant(name, value, expected):
    with pytest.raises(hvd.InvalidError, match=f"{name}='{value}': expected {expected}"):
        _horovod.options_of({name: value}, print)

def test_sets_and_join_on_three_ranks(tmp_path):
    import sys

    from conftest import PACKAGE, PATIENCE
    script, lines = tmp_path / "worker.py", []
    script.write_text(THREE)
    try:
        hvd.driver.run([sys.executable, str(script)], np=3, hosts="localhost:3", restart=False,
                       elastic_timeout=60 * PATIENCE, environment={"PYTHONPATH": str(PACKAGE)},
                       timeout=60 * PATIENCE,
                       output=lambda rank, host, slot, is_stderr, line: lines.append(line))
    except hvd.HvdError as error:
        pytest.fail(f"{error}\n" + "\n".join(lines))
    assert lines == ["fine"] * 3, "\n".join(lines)

def shares(factor, plus=0):
    hvd.init()
    return int(hvd.allreduce(bytearray([hvd.rank() * factor]), op=hvd.Sum)[0]) + plus, hvd.rank()

def fails():
    raise KeyError("mine")

def test_a_function_as_a_job(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    assert hvd.run(shares, (3,), {"plus": 1}, np=3) == [(10, 0), (10, 1), (10, 2)]
    assert hvd.run(os.getcwd, np=1) == [os.getcwd()]  # a function that knows nothing of it
    with pytest.raises(hvd.JobFailedError):
        hvd.run(fails, np=1, restart=False, output=lambda *line: None)
    for function, match in ((3, "something to call"), ((lambda: (lambda lock: lock)
                                                        (1), 1), "something to call")):
        with pytest.raises(hvd.InvalidError, match=match):
            hvd.run(function)
    import threading

    with pytest.raises(hvd.InvalidError, match="can't be pickled"):
        hvd.run(shares, (threading.Lock(),))

def test_checkpoints_of_its_sampler(alone):
    sampler = hvd.elastic.ElasticSampler(20, batch_size=4)
    assert (sampler.num_replicas, sampler.rank, sampler.num_samples, sampler.total_size) == (1, 0, 20, 20)
    sampler.load_state_dict({"epoch": 3, "processed_num": 8})
    assert (sampler.epoch, sampler.processed_num, len(list(sampler))) == (3, 8, 12)
    sampler.load_state_dict({"epoch": 3, "processed_num": 4})
    assert sampler.processed_num == 4
    saved = sampler.state_dict()
    assert (saved["epoch"], saved["processed_num"]) == (3, 4)
    sampler.record_batch(0, 4)
    sampler.load_state_dict(saved)
    assert sampler.processed_num == 4
    for state, match in (({}, "with nothing"), ({"epoch": 1}, "expected 'saved'"),
                         ({"epoch": 0, "processed_num": -1}, "processed_num -1"),
                         ({"epoch": -1, "processed_num": 0}, "epoch -1")):
        with pytest.raises(hvd.InvalidError, match=match):
            sampler.load_state_dict(state)
