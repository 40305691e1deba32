// Waits for descriptors of the library without a thread of Node's pool: one thread of our own polls them all.
import { Worker } from "node:worker_threads";
import koffi from "koffi";

const EFD_FLAGS = 0o2000000 | 0o4000; // close on exec, non-blocking
const libc = koffi.load("libc.so.6");
const eventfd = libc.func("int eventfd(uint value, int flags)");
const write = libc.func("long write(int fd, void *data, size_t size)");
const close = libc.func("int close(int fd)");
const one = Buffer.from([1, 0, 0, 0, 0, 0, 0, 0]);

let worker;
let wake;
let tokens = 0;
let busy = 0; // watches that keep the process alive
const waiting = new Map(); // token: { resolve, keeps }

function send(message) {
  worker.postMessage(message);
  write(wake, one, 8);
}

function start() {
  wake = eventfd(0, EFD_FLAGS);
  if (wake < 0) throw new Error(`eventfd: errno ${koffi.errno()}`);
  worker = new Worker(new URL("./poller_thread.js", import.meta.url), { workerData: { wake }, execArgv: [], stdin: false });
  worker.on("message", (token) => done(token, true));
  worker.on("error", failed);
  worker.unref(); // a listener refs it
}

// Whoever waits hears of it, and the next one starts another thread.
function failed(error) {
  worker = undefined;
  close(wake);
  busy = 0;
  for (const { reject } of waiting.values()) reject(error);
  waiting.clear();
}

// A thread in poll() would hold up the end of the process.
process.on("exit", () => {
  if (worker) send({ stop: true });
});

function done(token, outcome) {
  const watch = waiting.get(token);
  if (!watch) return;
  waiting.delete(token);
  if (watch.keeps && --busy === 0) worker.unref();
  watch.resolve(outcome);
}

/** A promise of true when the descriptor is readable, of false after cancel(). `keeps`: the process stays
 * for it. */
export function readable(fd, { keeps = true } = {}) {
  if (!worker) start();
  const token = ++tokens;
  const promise = new Promise((resolve, reject) => waiting.set(token, { resolve, reject, keeps }));
  if (keeps && ++busy === 1) worker.ref();
  send({ watch: fd, token });
  return { promise, cancel() {
    if (!waiting.has(token)) return;
    send({ forget: fd, token });
    done(token, false);
  } };
}
