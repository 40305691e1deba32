"""Trains a small network on Fashion-MNIST with whoever is there: workers may die, leave and join while it
runs.

    hvdrun -np 3 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh -- python3 fashion_mnist.py

The same job as examples/fashion_mnist.cc, in NumPy: workers in both languages can train one model. What
elastic training asks of a program shows in three places: a sampler deals the samples out, gradients are sums
over samples that are divided by how many there were, and whatever must survive is in a state.
"""

import argparse
import gzip
import os
import struct
import sys

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # workers share the machine's cores: each uses one
import numpy as np

import hvd


def read_idx(path):
    """The array of unsigned bytes in a gzipped IDX file."""
    with gzip.open(path) as file:
        data = file.read()
    kind, dimensions = struct.unpack_from(">HBB", data)[1:]
    if kind != 8:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_images(directory, part):
    """Pixels from -0.5 to 0.5, one sample a row, and labels."""
    images = read_idx(f"{directory}/{part}-images-idx3-ubyte.gz")
    return images.reshape(len(images), -1), read_idx(f"{directory}/{part}-labels-idx1-ubyte.gz")


class Mlp:
    """One hidden layer; the parameters lie in one flat array, so that one allreduce carries a whole gradient.
    """

    def __init__(self, inputs, hidden, outputs, seed):
        self.shapes = [(inputs, hidden), (hidden,), (hidden, outputs), (outputs,)]
        random = np.random.default_rng(seed)  # He et al., "Delving Deep into Rectifiers" (2015)
        self.parameters = np.concatenate([
            random.normal(0, np.sqrt(2 / shape[0]), shape).ravel() if len(shape) == 2 else np.zeros(shape)
            for shape in self.shapes]).astype(np.float32)

    def layers(self, flat):
        begin, found = 0, []
        for shape in self.shapes:
            size = int(np.prod(shape))
            found.append(flat[begin:begin + size].reshape(shape))
            begin += size
        return found

    def logits(self, x):
        w1, b1, w2, b2 = self.layers(self.parameters)
        hidden = np.maximum(x @ w1 + b1, 0)
        return hidden, hidden @ w2 + b2

    def gradient(self, x, labels, out):
        """Sum over the samples of the cross entropy; its gradient goes into `out`."""
        w2, (g1, gb1, g2, gb2) = self.layers(self.parameters)[2], self.layers(out)
        hidden, y = self.logits(x)
        y = np.exp(y - y.max(axis=1, keepdims=True))
        y /= y.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(np.maximum(y[rows, labels], 1e-30)).sum()
        y[rows, labels] -= 1  # now the gradient by the logits
        back = (y @ w2.T) * (hidden > 0)
        g1[:], gb1[:], g2[:], gb2[:] = x.T @ back, back.sum(axis=0), hidden.T @ y, y.sum(axis=0)
        return loss


    def fnv1a(self):
        """A hash of the parameters."""
        found = 14695981039346656037
        for bits in self.parameters.view(np.uint32).tolist():
            found = (found ^ bits) * 1099511628211 % (1 << 64)
        return found


class Training:
    """What must survive, under the names that the examples in other languages give it."""

    def __init__(self, model, samples, settings):
        self.parameters = model.parameters
        self.velocity = np.zeros_like(model.parameters)
        self.steps = np.zeros(1, np.int64)
        self.sampler = hvd.elastic.ElasticSampler(samples, seed=settings.seed, batch_size=settings.batch,
                                                  padding="none")
        self.reported = 0  # recoveries of this process: no part of what is kept
        self.state = hvd.elastic.State()
        self.state.add_array("parameters", self.parameters)
        self.state.add_array("velocity", self.velocity)
        self.state.add_value("step", self.steps)
        self.state.add_sampler("sampler", self.sampler)


def pixels(images):
    return images.astype(np.float32) / 255 - 0.5


def report_recoveries(job):
    for number, r in enumerate(hvd.recoveries()):
        if number < job.reported or hvd.rank() != 0:
            continue
        verb = "go on" if r.cause == hvd.HorovodInternalError.status else "from now on" if r.to_size > r.from_size else "remain"
        times = ", ".join(f"{name} {getattr(r, name) / 1e6:.1f}"
                          for name in ("detection", "abort", "restore", "forming", "connecting", "sync"))
        print(f"recovery {number + 1}: {r.reason or 'unknown cause'}: {r.to_size} workers {verb}; {times}, "
              f"total {r.total_ns / 1e6:.1f} ms", flush=True)
    job.reported = len(hvd.recoveries())


def check(model, test, target):
    """Each worker classifies its part of the test set; do all hold the same model, bit for bit? An exception
    fails the job."""
    images, labels = test
    mine = slice(len(images) * hvd.rank() // hvd.size(), len(images) * (hvd.rank() + 1) // hvd.size())
    correct = (model.logits(pixels(images[mine]))[1].argmax(axis=1) == labels[mine]).sum()
    accuracy = hvd.allreduce(np.array([correct]), "correct", hvd.Sum)[0] / len(images)
    mine = model.fnv1a()
    lowest = hvd.allreduce(np.array([mine], np.uint64), "lowest hash", hvd.Min)[0]
    highest = hvd.allreduce(np.array([mine], np.uint64), "highest hash", hvd.Max)[0]
    if lowest != highest:
        raise RuntimeError(f"rank {hvd.rank()} holds a model of its own ({mine:016x})")
    if hvd.rank() == 0:
        print(f"all {hvd.size()} workers hold the same model ({mine:016x})\ntest accuracy {accuracy:.4f}",
              flush=True)
    if accuracy < target:
        raise RuntimeError(f"the accuracy {accuracy:.4f} is below the target of {target}")


@hvd.elastic.run
def train(state, job, model, data, test, settings):
    """Begins wherever the state is, with whoever is there."""
    images, labels = data
    report_recoveries(job)
    sums = np.empty(len(job.parameters) + 1, np.float32)  # gradient and loss
    while True:
        for batch in job.sampler.batches():
            chosen = np.array(batch.indices, np.int64)
            sums[-1] = model.gradient(pixels(images[chosen]), labels[chosen], sums[:-1])
            hvd.allreduce_(sums, "gradient", hvd.Sum)
            sums *= np.float32(1) / np.float32(batch.total)
            job.velocity *= np.float32(settings.momentum)
            job.velocity += sums[:-1]
            job.parameters -= np.float32(settings.rate) * job.velocity
            job.steps[0] += 1
            job.sampler.record(batch)
            step = job.steps[0]
            if hvd.rank() == 0 and step % settings.report_every == 0:
                print(f"epoch {batch.epoch + 1} step {step} loss {sums[-1]:.3f} workers {hvd.size()}",
                      flush=True)
            if step % settings.commit_every == 0:
                state.commit()
        if job.sampler.epoch + 1 >= settings.epochs:
            return check(model, test, settings.target)
        job.sampler.set_epoch(job.sampler.epoch + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("HVD_FASHION_MNIST_DIR",
                                                         "/usr/share/datasets/fashion-mnist"))
    for name, default in (("epochs", 8), ("batch", 64), ("hidden", 128), ("commit-every", 10),
                          ("report-every", 20), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("rate", 0.02), ("momentum", 0.9), ("target", 0.84)):
        parser.add_argument(f"--{name}", type=float, default=default)
    settings = parser.parse_args()
    try:
        data, test = read_images(settings.data, "train"), read_images(settings.data, "t10k")
    except OSError as error:
        sys.exit(f"{error} (Debian package dataset-fashion-mnist)")
    model = Mlp(data[0].shape[1], settings.hidden, 10, settings.seed)

    hvd.init()
    place = hvd.membership()
    print(f"worker {place.worker} pid {os.getpid()} joins as rank {place.rank} of {place.size} (Python)",
          flush=True)
    job = Training(model, data[0], settings)
    try:
        train(job.state, job, model, data, test, settings)
    except hvd.RemovedError as error:
        print(f"worker pid {os.getpid()} leaves: {error}", flush=True)
        return
    hvd.shutdown()


if __name__ == "__main__":
    main()
