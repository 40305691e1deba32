// Waiting for descriptors, and for the next one of a number whose descriptor was forgotten.
import assert from "node:assert/strict";
import { test } from "node:test";
import koffi from "koffi";
import { readable } from "../lib/poller.js";

const libc = koffi.load("libc.so.6");
const eventfd = libc.func("int eventfd(uint value, int flags)");
const read = libc.func("long read(int fd, void *data, size_t size)");
const write = libc.func("long write(int fd, void *data, size_t size)");
const close = libc.func("int close(int fd)");
const one = Buffer.from([1, 0, 0, 0, 0, 0, 0, 0]);
const deadline = { timeout: 60_000 * Number(process.env.HVD_TEST_PATIENCE ?? 1) };

async function withDescriptor(work) {
  const fd = eventfd(0, 0o2000000 | 0o4000);
  assert.ok(fd >= 0);
  try {
    await work(fd);
  } finally {
    close(fd);
  }
}

test("a descriptor that becomes readable", deadline, () => withDescriptor(async (fd) => {
  const { promise } = readable(fd);
  write(fd, one, 8);
  assert.equal(await promise, true);
}));

test("a watch that is cancelled", deadline, () => withDescriptor(async (fd) => {
  const { promise, cancel } = readable(fd);
  cancel();
  cancel();
  assert.equal(await promise, false);
}));

test("a watch that was cancelled late leaves the next one of its number alone", deadline, () => withDescriptor(async (fd) => {
  const first = readable(fd);
  const second = readable(fd);
  first.cancel();
  assert.equal(await first.promise, false);
  write(fd, one, 8);
  assert.equal(await second.promise, true);
}));

test("what was readable for a watch that is forgotten is not taken from the next one", deadline, () => withDescriptor(async (fd) => {
  const room = Buffer.alloc(8);
  for (let round = 0; round < 5000; round++) {
    const first = readable(fd);
    write(fd, one, 8); // the thread sees it while the rest is on its way, or not
    first.cancel();
    const second = readable(fd);
    assert.equal(await second.promise, true, `round ${round}`);
    read(fd, room, 8);
  }
}));

test("when the thread fails, those who wait hear of it, and the next one has another thread", deadline, async () => {
  const limits = koffi.struct("rlimit", { soft: "uint64", hard: "uint64" });
  const get = libc.func("int getrlimit(int what, _Out_ rlimit *limits)");
  const set = libc.func("int setrlimit(int what, const rlimit *limits)");
  const RLIMIT_NOFILE = 7, before = {};
  assert.equal(koffi.sizeof(limits), 16);
  assert.equal(get(RLIMIT_NOFILE, before), 0);
  await withDescriptor(async (fd) => {
    assert.equal(set(RLIMIT_NOFILE, { soft: 1, hard: before.hard }), 0); // fewer than it polls: EINVAL
    let watch;
    try {
      watch = readable(fd).promise;
      await assert.rejects(watch, /poll: errno 22/);
    } finally {
      assert.equal(set(RLIMIT_NOFILE, before), 0);
    }
    const next = readable(fd).promise;
    write(fd, one, 8);
    assert.equal(await next, true);
  });
});

test("many descriptors at a time", deadline, async () => {
  const fds = Array.from({ length: 100 }, () => eventfd(0, 0o2000000 | 0o4000));
  try {
    const watches = fds.map((fd) => readable(fd).promise);
    for (const fd of fds.toReversed?.() ?? [...fds].reverse()) write(fd, one, 8);
    assert.deepEqual(await Promise.all(watches), fds.map(() => true));
  } finally {
    fds.forEach((fd) => close(fd));
  }
});
