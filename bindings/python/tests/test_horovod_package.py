"""The package `horovod` that is ours: its command's options, and scripts for Horovod that run as they are."""

import importlib.util
import os
import re
import stat
import subprocess
import sys

import pytest

import hvd
from conftest import PACKAGE, PATIENCE

ALIAS = PACKAGE.parent / "horovod"
sys.path.insert(0, str(ALIAS))

from horovod.runner.launch import command_line  # noqa: E402


def words(line, environment=None):
    found, idle = command_line(line.split(), environment or {})
    return " ".join(found), idle


@pytest.mark.parametrize("line, expected", [
    ("-np 2 python train.py --lr 3 -np 4", "--np 2 -- python train.py --lr 3 -np 4"),
    ("--num-proc 2 --min-np 1 --max-num-proc 4 --slots-per-host 2 --host-discovery-script ./d.sh -- a",
     "--np 2 --min-np 1 --max-np 4 --host-discovery-script ./d.sh --slots-per-host 2 -- a"),
    ("-np 4 -H a:2,b:2 -p 2222 -i /k --verbose a",
     "--np 4 --hosts a:2,b:2 --verbose --agent ssh -o BatchMode=yes -p 2222 -i /k {host} -- a"),
    ("-np 1 -hostfile h --blacklist-cooldown-range 1 30 --reset-limit 3 --elastic-timeout 60 a",
     "--np 1 --hostfile h --elastic-timeout 60 --reset-limit 3 --blocklist-cooldown-range 1 30 -- a"),
    ("-np 1 --fusion-threshold-mb 32 --no-stall-check --log-level FATAL --start-timeout 9 --mpi --gloo-timeout-seconds 3 a",
     "--np 1 --set start_timeout=9s --set fusion_threshold=33554432 --set stall_warning=0s --set log_level=error --backend mpi -- a"
     ),
    ("-np 1 --network-interfaces eth0,eth1 --stall-check-shutdown-time-seconds 7 --timeline-filename t.json --gloo a",
     "--np 1 --timeline-filename t.json --set stall_shutdown=7s --network-interface eth0 -- a"),
    ("-cb", "--check-build"),
])
def test_options_of_its_command(line, expected):
    assert words(line)[0] == expected


def test_options_without_effect_are_named():
    assert words("-np 1 --cycle-time-ms 3 --autotune --no-hierarchical-allreduce --disable-cache a")[1] == [
        "--disable-cache", "--cycle-time-ms", "--autotune"]
    assert words("-np 1 --network-interface a --network-interface b c")[1] == ["--network-interfaces b"]
    assert words("-np 1 a", {"HOROVOD_START_TIMEOUT": "7", "HOROVOD_ELASTIC_TIMEOUT": "8"})[0] == (
        "--np 1 --elastic-timeout 8 --set start_timeout=7s -- a")


@pytest.mark.parametrize("line, said", [("-np x a", "invalid int value: 'x'"), ("-np 2", "no command"),
                                        ("a b", "-np: expected the number"),
                                        ("-np 1 --reset-limit 0 a", "expected 1 or more"),
                                        ("-np 1 --gloo --mpi a", "expected one of them"),
                                        ("-np 1 --fusion-threshold-mb -3 a", "expected 0 or more"),
                                        ("-np 1 --log-level LOUD a", "invalid choice"),
                                        ("-np 1 --config-file /nowhere a", "No such file|PyYAML"), ])
def test_wrong_options_end_with_status_2(line, said, capsys):
    with pytest.raises(SystemExit) as ended:
        words(line)
    assert ended.value.code == 2 and re.search(said, capsys.readouterr().err)


def test_a_configuration_file(tmp_path, capsys):
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(
        "controller: mpi\nparams:\n  fusion_threshold_mb: 4\n  cycle_time_ms: 2\nstall_check:\n  enabled: false\n"
        "timeline:\n  filename: x.json\nlogging:\n  level: INFO\n")
    line = f"-np 1 --config-file {path}"
    assert words(f"{line} a") == (
        "--np 1 --timeline-filename x.json --set fusion_threshold=4194304 --set stall_warning=0s "
        "--set log_level=info --backend mpi -- a", ["--cycle-time-ms"])
    assert "fusion_threshold=8388608" in words(f"{line} --fusion-threshold-mb 8 a")[
        0]  # the command line comes first
    for text, said in (("- a", "sections"), ("params:\n  speed: 1", "speed: no such entry"),
                       ("else: 1", "else: expected one of"), ("controller: smoke",
                                                              "gloo or mpi"), ("params: {", "config.yaml")):
        path.write_text(text)
        with pytest.raises(SystemExit):
            words(f"{line} a")
        assert said in capsys.readouterr().err


def horovodrun(*arguments, **environment):
    command = [sys.executable, "-m", "horovod.runner.launch", *map(str, arguments)]
    path = os.pathsep.join([str(ALIAS), str(PACKAGE)])
    return subprocess.run(command, capture_output=True, text=True, timeout=280 * PATIENCE,
                          stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment})


def test_a_function_as_a_job(monkeypatch):
    import horovod
    from horovod_function import where

    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    assert horovod.run(where, (10,), num_proc=2, use_gloo=True) == [10, 11]
    assert horovod.run(where, kwargs={"plus": 1}, np=1, hosts="localhost:1", executable=sys.executable) == [1]
    with pytest.raises(ValueError, match="hosts='far:2'.*this machine"):
        horovod.run(where, num_proc=2, hosts="far:2")
    assert horovod.__version__.startswith("0.28.1+") and horovod.__version__.endswith(hvd.__version__)
    assert f'version = "{horovod.__version__}"' in (ALIAS / "pyproject.toml").read_text()


TORCH = """
import argparse, os
import torch
import torch.nn.functional as F
import horovod.torch as hvd
from horovod.common.util import gloo_built
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.compression import Compression, Compressor, FP16Compressor, NoneCompressor
from horovod.torch.elastic.sampler import ElasticSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
hvd.init()
assert gloo_built()
torch.manual_seed(42 + hvd.rank())
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
sampler = hvd.elastic.ElasticSampler(data)
assert isinstance(sampler, ElasticSampler) and isinstance(sampler, torch.utils.data.Sampler)
assert issubclass(FP16Compressor, Compressor) and Compression.none is NoneCompressor
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16)

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, args.epochs + 1):
        state.sampler.set_epoch(state.epoch)
        for batch_idx, (data, target) in enumerate(loader):
            if hvd.rank() == 1 and state.epoch == 2 and state.batch == 2 and not os.path.exists(os.environ["ONCE"]):
                open(os.environ["ONCE"], "w").close()
                os.kill(os.getpid(), 9)
            state.batch = batch_idx
            optimizer.zero_grad()
            F.cross_entropy(model(data), target).backward()
            optimizer.step()
            state.sampler.record_batch(batch_idx, 8)
            state.commit()
        state.batch = 0

state = hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0, sampler=sampler)
def on_reset():
    assert os.environ["HOROVOD_SIZE"] == str(hvd.size()) and os.environ["HOROVOD_RANK"] == str(hvd.rank())
    print("variables are those of now", flush=True)

os.environ["HOROVOD_SIZE"] = "0"  # whoever it was
state.register_reset_callbacks([on_reset])
train(state)
assert os.environ["HOROVOD_SIZE"] == str(hvd.size())
if hvd.rank() == 0:  # averages are over all ranks, also those that have joined
    assert hvd.allreduce(torch.tensor([6.0]), name="after others have joined").item() == 6.0 / hvd.size()
hvd.join()
total = hvd.allreduce(sum(p.sum() for p in model.parameters()).detach(), name="total")
assert torch.allclose(total, sum(p.sum() for p in model.parameters()))
print("trained", state.epoch, hvd.size(), flush=True)
"""


def test_a_script_for_pytorch_runs_as_it_is_through_a_kill(tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    script, hosts = tmp_path / "train.py", tmp_path / "discover.sh"
    script.write_text(TORCH)
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(hosts.stat().st_mode | stat.S_IEXEC)
    done = horovodrun("-np", 2, "--min-np", 1, "--max-np", 2, "--host-discovery-script", hosts,
                      "--cycle-time-ms", 1, sys.executable, script, "--epochs", 3,
                      ONCE=str(tmp_path / "once"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without effect here: --cycle-time-ms" in done.stderr
    assert "variables are those of now" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "once").exists() and re.search(r"trained 3 [12]",
                                                      done.stdout), done.stdout + done.stderr


AGAIN = """
import os, sys
import hvd
if sys.argv[1] == "kept":
    import horovod
hvd.init()
rank, size = hvd.rank(), hvd.size()
for life in range(3):
    odd = hvd.add_process_set([1])
    assert odd.process_set_id == 1 and hvd.global_process_set.size() == size
    assert hvd.allreduce(bytearray([rank + life]), op=hvd.Sum)[0] == sum(range(size)) + size * life
    if rank == 1:
        hvd.barrier(process_set=odd)
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    try:
        hvd.rank()
        raise SystemExit("a rank after shutdown")
    except (hvd.InvalidError, hvd.ClosedError) as error:
        assert "shut" in str(error), error
    if life == 1:
        try:
            hvd.init(init_timeout=7)
            raise SystemExit("other options")
        except hvd.InvalidError as error:
            assert "init_timeout" in str(error), error
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
if sys.argv[2:3] == [str(rank)]:
    hvd.shutdown()
    sys.exit(3)
if sys.argv[2:3] != ["quietly"] or rank == 1:  # or with no word at all
    hvd.shutdown()
print("fine", flush=True)
"""


def again(tmp_path, *arguments):
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    return horovodrun("-np", 2, "-H", "localhost:2", sys.executable, script, *arguments)


@pytest.mark.parametrize("how", [["kept"], ["kept", "quietly"]])
def test_init_after_shutdown(tmp_path, how):
    done = again(tmp_path, *how)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


def test_the_end_of_a_worker_that_kept_its_place_counts(tmp_path):
    done = again(tmp_path, "kept", 1)
    assert done.returncode != 0 and "exited with status 3 after it had said that it was done" in done.stderr, (
        done.stdout + done.stderr)


def test_no_place_is_kept_unasked(tmp_path):
    done = again(tmp_path, "not")
    assert done.returncode != 0 and "the job has ended" in done.stderr, done.stdout + done.stderr


PARTLY = """
import os, sys, time
import hvd
from hvd.context import _PARKING

hvd.init()
rank, how, mark = hvd.rank(), sys.argv[1], sys.argv[2]
if how == "late" and rank == 0:  # nobody comes in time
    try:
        hvd.shutdown(0.3, keep_place=True)
        raise SystemExit("a place that was kept alone")
    except hvd.WaitTimeoutError:
        open(mark, "w").close()
elif how == "late":
    end = time.monotonic() + float(sys.argv[3])
    while not os.path.exists(mark):
        assert time.monotonic() < end, "rank 0 did not give up"
        time.sleep(0.01)
    hvd.shutdown(keep_place=True)
elif rank == 0:  # all have met, but it did not learn of it in its time
    hvd.barrier(_PARKING)
    hvd.shutdown(keep_place=False)
else:
    hvd.shutdown(keep_place=True)
assert not hvd.is_initialized()
try:
    hvd.init()
    assert (how, rank) == ("met", 1), "a place in a job that it has left"
    hvd.barrier()
    raise SystemExit("a barrier without rank 0")
except (hvd.JobFailedError, hvd.RemovedError) as error:
    assert "the job has ended" in str(error), error
except hvd.HorovodInternalError as error:
    assert (how, rank) == ("met", 1) and "rank 0" in str(error) and "has finished" in str(error), error
print("fine", flush=True)
"""


@pytest.mark.parametrize("how", ["late", "met"])
def test_the_time_of_one_passes_while_places_are_kept(how, tmp_path):
    """Some keep their places and some do not: nobody waits, the job ends well, init() says what there is."""
    script = tmp_path / "partly.py"
    script.write_text(PARTLY)
    done = horovodrun("-np", 2, "-H", "localhost:2", sys.executable, script, how, tmp_path / "mark",
                      60 * PATIENCE)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


PAGE = (PACKAGE.parents[1] / "docs" / "horovod.md").read_text()


@pytest.mark.parametrize("title, module, alias", [("PyTorch", "torch", "hvd.torch"),
                                                  ("TensorFlow", "tensorflow", "hvd.tensorflow"),
                                                  ("Keras", "keras", "hvd.keras")])
def test_the_examples_of_the_page(title, module, alias, tmp_path):
    """Once with this project's import, once with Horovod's."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    (block,) = re.findall(rf"```python\n(# from Horovod: {title}\n.*?)```", PAGE, flags=re.S)
    assert f"import {alias} as hvd" in block and f"# import {alias.replace('hvd', 'horovod')} as hvd" in block
    for name, text in (("ours", block), ("theirs",
                                         block.replace(f"import {alias} as",
                                                       f"import {alias.replace('hvd', 'horovod')} as"))):
        script = tmp_path / f"{name}.py"
        script.write_text(text)
        done = horovodrun("-np", 2, "-H", "localhost:2", sys.executable, script, TF_CPP_MIN_LOG_LEVEL="3",
                          CUDA_VISIBLE_DEVICES="-1")
        assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout + done.stderr
