"""Horovod's own examples against packages hvd and horovod: horovod_own_examples.py CHECKOUT [NAME...]

Each program in EXAMPLES, or those whose path has a NAME, runs on two processes that the package's horovodrun
starts, from the file as it is, on data made up here. An elastic one loses a worker by SIGKILL while it
trains: the other goes on, and the worker that is started instead must have joined before the end. --show:
what the programs write, too. The exit status is 1 if one fails.

Nothing in Horovod's files is changed. Keras would compare the made-up data with the digest of the real ones:
that comparison alone is left out.
"""

import argparse
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


class Example(typing.NamedTuple):
    """A program of CHECKOUT/examples, and what it writes."""
    path: str
    end: str  # in the end
    training: str | None = None  # once it trains: the worker is killed then
    arguments: tuple[str, ...] = ()
    side: int = 10  # pixels of Keras' digits: with 10 a step is short


TORCH = ("--data-dir", "{directory}/torch")
RESNET = ("--model", "resnet18", "--batch-size", "1", "--num-warmup-batches", "2", "--num-batches-per-iter",
          "4")
KERAS_RESNET = ("--no-cuda", "--batch-size", "1", "--num-warmup-batches", "1", "--num-batches-per-iter", "2",
                "--num-iters", "2")
EXAMPLES = [
    Example("pytorch/pytorch_mnist.py", r"Accuracy: \d+", arguments=("--epochs", "1", *TORCH)),
    Example("pytorch/pytorch_mnist.py", r"Accuracy: \d+",
            arguments=("--use-adasum", "--epochs", "1", *TORCH)),
    Example("pytorch/pytorch_synthetic_benchmark.py",
            "Total img/sec on 2 CPU",
            arguments=("--fp16-allreduce", "--num-iters", "2", *RESNET)),
    # So many epochs that a newcomer has imported PyTorch before they are over.
    Example("elastic/pytorch/pytorch_mnist_elastic.py", r"Accuracy: \d+",
            r"Train Epoch: 1 .*\n(.*\n)*?.*Train Epoch: 1 ", ("--epochs", "16", *TORCH)),
    Example("elastic/pytorch/pytorch_synthetic_benchmark_elastic.py", "Total img/sec on 2 CPU", "Iter #1",
            ("--num-iters", "20", *RESNET)),
    Example("elastic/pytorch/pytorch_imagenet_resnet50_elastic.py", "Validate Epoch  #3",
            "Validate Epoch  #1", ("--epochs", "3", "--batch-size", "1", "--batches-per-commit", "1",
                                   "--train-dir", "{directory}/images", "--val-dir", "{directory}/images")),
    Example("tensorflow2/tensorflow2_mnist.py", "Step #"),
    Example("tensorflow2/tensorflow2_keras_mnist.py", "Epoch 24/24"),
    Example("tensorflow2/tensorflow2_synthetic_benchmark.py",
            "Total img/sec on 2 CPU",
            arguments=KERAS_RESNET),
    Example("elastic/tensorflow2/tensorflow2_mnist_elastic.py", "Step #", "Step #10", side=28),
    Example("elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py", r"Epoch \d+/", "Epoch 2/"),
    # Nobody can join it: it trains a batch with the others before it calls its elastic function, where they
    # wait for a newcomer to sync.
    Example("elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
            "Total img/sec on 2 CPU",
            arguments=KERAS_RESNET),
]


def program(path, arguments):
    """In a worker: the example's file."""
    if "/tensorflow" in path:
        from tf_keras.src.utils import data_utils

        data_utils.validate_file = lambda *arguments, **keywords: True
    else:
        sys.modules["tensorflow"] = None  # TensorBoard's writer does without
    sys.argv[:] = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def data(directory):
    """Digits of noise on which an image's label can be learned, as the files that the loaders look for; and
    pictures in two folders."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(5)

    def digits(count, side):
        labels = random.integers(0, 10, count, dtype=np.uint8)
        images = random.integers(0, 64, (count, side, side), dtype=np.uint8)
        images[np.arange(count), labels % side, :] += 128
        return images, labels

    raw = directory / "torch/MNIST/raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 12000), ("t10k", 2000)):
        for kind, array in zip(("images-idx3", "labels-idx1"), digits(count, 28)):
            header = (0x800 + array.ndim).to_bytes(4, "big") + b"".join(
                n.to_bytes(4, "big") for n in array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    for side in {example.side for example in EXAMPLES}:
        keras = directory / f"{side}/.keras/datasets"
        keras.mkdir(parents=True)
        (x_train, y_train), (x_test, y_test) = digits(12000, side), digits(2000, side)
        for rank in range(2):
            np.savez(keras / f"mnist-{rank}.npz",
                     x_train=x_train,
                     y_train=y_train,
                     x_test=x_test,
                     y_test=y_test)
    for kind in range(2):
        folder = directory / f"images/{kind}"
        folder.mkdir(parents=True)
        for number in range(12):
            picture = random.integers(0, 255, (256, 256, 3), dtype=np.uint8)
            picture[:, :, kind] = 255
            Image.fromarray(picture).save(folder / f"{number}.jpg")
    hosts = directory / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(0o755)


def run(example, given, directory):
    """None, or why it failed."""
    elastic = "--min-np 1 --max-np 2 --host-discovery-script {directory}/hosts.sh" if example.training else ""
    command = [
        sys.executable, "-m", "horovod.runner.launch", "-np", "2", *elastic.split(), sys.executable, "-B",
        __file__, "--program",
        str(given.checkout / "examples" / example.path), *example.arguments
    ]
    environment = {
        **os.environ, "HOME": f"{directory}/{example.side}",
        "TF_USE_LEGACY_KERAS": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "bindings/horovod"),
                                       str(ROOT / "bindings/python")])
    }
    with tempfile.TemporaryDirectory(dir=directory) as work:
        job = subprocess.Popen([word.format(directory=directory) for word in command],
                               cwd=work,
                               env=environment,
                               stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT,
                               text=True,
                               start_new_session=True)
        over = threading.Timer(given.timeout, job.terminate)
        over.start()
        output, killed = "", False
        try:
            for line in job.stdout:
                output += line
                if given.show:
                    print(line, end="", flush=True)
                if example.training and not killed and re.search(example.training, output):
                    killed = True
                    below = psutil.Process(job.pid).children(recursive=True)  # a worker before its own
                    next(each for each in below if each.environ().get("HVD_WORKER") == "2").kill()
            status = job.wait()
        except BaseException:
            job.terminate()
            job.wait()
            raise
        finally:
            over.cancel()
    if status:
        return f"status {status}\n{output[-4000:]}"
    if not re.search(example.end, output):
        return f"nothing that matches {example.end!r} in\n{output[-4000:]}"
    if example.training and not re.search(r"all 2 workers are done after (?!1 )", output):
        return f"the killed worker's place was not taken\n{output[-4000:]}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--timeout", type=float, default=600)
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="horovod-own.") as directory:
        data(Path(directory))
        for example in EXAMPLES:
            if given.names and not any(name in example.path for name in given.names):
                continue
            began = time.monotonic()
            why = run(example, given, Path(directory))
            print(
                f"{'failed' if why else 'passed'} {example.path} {' '.join(example.arguments[:1])} "
                f"({time.monotonic() - began:.0f} s)",
                *filter(None, [why]),
                flush=True)
            failed += bool(why)
    sys.exit(bool(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        program(sys.argv[2], sys.argv[3:])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the job, too
        main()
