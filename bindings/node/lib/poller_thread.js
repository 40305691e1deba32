// A thread that does nothing but poll(2): it says which descriptors are readable, once each.
import { parentPort, receiveMessageOnPort, workerData } from "node:worker_threads";
import koffi from "koffi";

const POLLIN = 1, EINTR = 4;
const libc = koffi.load("libc.so.6");
const poll = libc.func("int poll(void *fds, ulong count, int timeout)");
const read = libc.func("long read(int fd, void *data, size_t size)");
const { wake } = workerData;
const counter = Buffer.alloc(8);
const watched = new Map(); // descriptor: token of the watch

for (;;) {
  // struct pollfd { int fd; short events, revents; }
  const watches = [[wake, 0], ...watched];
  const fds = Buffer.alloc(8 * watches.length);
  watches.forEach(([fd], index) => {
    fds.writeInt32LE(fd, 8 * index);
    fds.writeInt16LE(POLLIN, 8 * index + 4);
  });
  if (poll(fds, watches.length, -1) < 0 && koffi.errno() !== EINTR) throw new Error(`poll: errno ${koffi.errno()}`);
  if (fds.readInt16LE(6)) {
    read(wake, counter, 8);
    for (let received; (received = receiveMessageOnPort(parentPort)) !== undefined;) {
      const { watch, forget, token, stop } = received.message;
      if (stop) process.exit();
      if (watch !== undefined) watched.set(watch, token);
      if (forget !== undefined && watched.get(forget) === token) watched.delete(forget);
    }
  }
  for (let index = 1; index < watches.length; index++) {
    if (!fds.readInt16LE(8 * index + 6)) continue;
    const [fd, token] = watches[index];
    if (watched.get(fd) !== token) continue; // forgotten meanwhile, and the number may be another file's
    watched.delete(fd);
    parentPort.postMessage(token);
  }
}
