"""The worker's model (model.c) in Python: what training must have computed, given the size of each step."""

import math
import struct

WEIGHTS, EMBEDDING, SAMPLES = 16, 8, 4
MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def sample_input(step, rank, sample, k):
    return ((mix((step << 32) | (rank << 16) | (sample << 8) | k) & 0xFF) - 128.0) / 128.0


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def fnv(value, data):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


class Model:
    def __init__(self):
        self.weights = [0.0] * WEIGHTS
        self.bias = 0.0
        self.velocity = [0.0] * (WEIGHTS + 1)
        self.embedding = [0.0] * EMBEDDING
        self.samples = 0
        self.history = []

    def gradients(self, rank):
        step = len(self.history)
        gradient = [0.0] * (WEIGHTS + 1)
        for sample in range(SAMPLES):
            x = [sample_input(step, rank, sample, k) for k in range(WEIGHTS)]
            target, prediction = 0.5, self.bias
            for k in range(WEIGHTS):
                target += x[k] * ((k - 8) / 8.0)
                prediction += x[k] * self.weights[k]
            residual = prediction - target
            for k in range(WEIGHTS):
                gradient[k] += residual * x[k]
            gradient[WEIGHTS] += residual
        gradient = [math.floor(g * 65536.0 + 0.5) / 65536.0 for g in gradient]
        embedding = [math.floor(sample_input(step, rank, 200, k) * 32.0) / 4.0 for k in range(EMBEDDING)]
        return gradient, embedding

    def step(self, size):
        parts = [self.gradients(rank) for rank in range(size)]
        samples = SAMPLES * size
        for k in range(WEIGHTS + 1):
            mean = sum(part[0][k] for part in parts) / samples
            self.velocity[k] = 0.5 * self.velocity[k] + mean
            if k < WEIGHTS:
                self.weights[k] = self.weights[k] - 0.25 * self.velocity[k]
            else:
                self.bias = self.bias - 0.25 * self.velocity[k]
        for k in range(EMBEDDING):
            total = sum(part[1][k] for part in parts)
            self.embedding[k] = float32(float32(self.embedding[k] * 0.5) + total)
        self.samples += samples
        self.history.append(size)

    def checksum(self):
        value = 0xCBF29CE484222325
        value = fnv(value, struct.pack("<16d", *self.weights))
        value = fnv(value, struct.pack("<d", self.bias))
        value = fnv(value, struct.pack("<17d", *self.velocity))
        value = fnv(value, struct.pack("<8f", *self.embedding))
        value = fnv(value, struct.pack("<3q", len(self.history), self.samples, sum(self.history)))
        value = fnv(value, struct.pack("<%dH" % len(self.history), *self.history))
        return "%016x" % value


def checksum_of(sizes):
    """Checksum after one step of each of these sizes."""
    model = Model()
    for size in sizes:
        model.step(size)
    return model.checksum()
