// A worker: its place in the job, its collectives and events.
import koffi from "koffi";
import { call, callAsync, make, plain, plainAsync, structs } from "./abi.js";
import * as c from "./constants.js";
import { HvdError, Status, choice, fail, integer, nanoseconds, number, options, shown, text } from "./errors.js";
import { readable } from "./poller.js";
import { copied, tensor, tensors } from "./tensor.js";

const BROADCAST = c.COLLECTIVE_BROADCAST, ALLREDUCE = c.COLLECTIVE_ALLREDUCE, ALLGATHER = c.COLLECTIVE_ALLGATHER,
      BARRIER = c.COLLECTIVE_BARRIER, REDUCESCATTER = c.COLLECTIVE_REDUCESCATTER, ALLTOALL = c.COLLECTIVE_ALLTOALL,
      JOIN = c.COLLECTIVE_JOIN;
const reductions = { sum: c.REDUCTION_SUM, average: c.REDUCTION_AVERAGE, min: c.REDUCTION_MIN, max: c.REDUCTION_MAX,
                     product: c.REDUCTION_PRODUCT };
const rules = { workers: c.SET_RULE_WORKERS, ranks: c.SET_RULE_RANKS, local: c.SET_RULE_LOCAL, cross: c.SET_RULE_CROSS,
                end: c.SET_RULE_END };
const kinds = new Map([
  [c.EVENT_HOSTS_UPDATED, "hostsUpdated"], [c.EVENT_PEER_LOST, "peerLost"], [c.EVENT_GENERATION, "generation"],
  [c.EVENT_JOB_ENDED, "jobEnded"], [c.EVENT_DRIVER_LOST, "driverLost"], [c.EVENT_RECOVERED, "recovered"],
  [c.EVENT_STALLED, "stalled"], [c.EVENT_DIVERGED, "diverged"], [c.EVENT_DRIVER_BACK, "driverBack"],
]);
const anyOp = ["processSet", "priority", "timeout"];

const alive = new Set();
// Blocked calls would hold up the end of the process: nothing waits for a context whose process ends.
process.on("exit", () => {
  for (const context of alive) context.abort("the process ends");
});

const placeOf = (info) => ({
  rank: info.rank, size: info.size, localRank: info.local_rank, localSize: info.local_size,
  crossRank: info.cross_rank, crossSize: info.cross_size, generation: Number(info.generation),
});

export class ProcessSet {
  #handle;
  constructor(handle) {
    this.#handle = handle;
  }
  /** @internal */
  get native() {
    if (!this.#handle) closed("process set");
    return this.#handle;
  }
  get place() {
    const info = make(structs.processSet);
    call("process_set_get_info", this.native, info);
    return placeOf(info);
  }
  destroy() {
    plain.process_set_destroy(this.#handle);
    this.#handle = null;
  }
}

function closed(what) {
  fail("hvd", Status.CLOSED, { message: `the ${what} was destroyed`, rank: -1, generation: 0, backend: "", vendor_code: 0 });
}

export class Context {
  #handle;
  #pending = new Set(); // what a call borrows lives until it has completed
  #events;
  #calls = 0;
  #idle = [];

  constructor(handle) {
    if (typeof handle !== "bigint") throw new TypeError("a Context is made by Context.init()");
    this.#handle = handle;
    alive.add(this);
  }

  /** Joins the job. Keys are those of docs/options.md; what is left out comes from the environment. */
  static async init(settings = {}) {
    if (settings === null || typeof settings !== "object") {
      throw new TypeError(`settings are ${shown(settings)}: expected an object`);
    }
    const created = [null];
    call("options_create", created);
    const [native] = created;
    try {
      for (const [key, value] of Object.entries(settings)) {
        if (!["string", "number", "boolean", "bigint"].includes(typeof value)) {
          throw new TypeError(`option ${key} is ${shown(value)}: expected a string, a number or a boolean`);
        }
        call("options_set", native, text(key, "option"), text(String(value), `option ${key}`));
      }
      const context = [null];
      await callAsync("init", native, context);
      return new Context(context[0]);
    } finally {
      plain.options_destroy(native);
    }
  }

  /** @internal */
  get native() {
    if (!this.#handle) closed("context");
    return this.#handle;
  }

  /** @internal Calls a function that may block; destroy() waits for it. */
  async blocking(name, ...values) {
    const native = this.native;
    this.#calls++;
    try {
      return await callAsync(name, ...(values[0] === this ? [native, ...values.slice(1)] : values));
    } finally {
      if (--this.#calls === 0) this.#idle.splice(0).forEach((resolve) => resolve());
    }
  }

  get membership() {
    const info = make(structs.membership);
    call("get_membership", this.native, info);
    return { ...placeOf(info), membershipEpoch: Number(info.membership_epoch), worker: BigInt(info.worker) };
  }
  get rank() { return this.membership.rank; }
  get size() { return this.membership.size; }
  get localRank() { return this.membership.localRank; }
  get localSize() { return this.membership.localSize; }
  get crossRank() { return this.membership.crossRank; }
  get crossSize() { return this.membership.crossSize; }
  get generation() { return this.membership.generation; }

  get backend() {
    const info = make(structs.backend);
    call("get_backend", this.native, info);
    return { name: info.name, version: info.version, path: info.path, detail: info.detail };
  }

  get recoveries() {
    const count = [0];
    call("get_recovery_count", this.native, count);
    return Array.from({ length: Number(count[0]) }, (_, index) => {
      const info = make(structs.recovery);
      call("get_recovery", this.native, index, info);
      const milliseconds = (value) => Number(value) / 1e6;
      return {
        fromGeneration: Number(info.from_generation), toGeneration: Number(info.to_generation), cause: info.cause,
        fromSize: info.from_size, toSize: info.to_size, attempts: info.attempts, revision: Number(info.revision),
        detection: milliseconds(info.detection_ns), abort: milliseconds(info.abort_ns),
        restore: milliseconds(info.restore_ns), forming: milliseconds(info.forming_ns),
        connecting: milliseconds(info.connecting_ns), sync: milliseconds(info.sync_ns),
        total: milliseconds(info.total_ns), syncBytes: Number(info.sync_bytes), reason: info.reason,
      };
    });
  }

  // ---- Collectives ----

  async #run(name, collective, { inputs, outputs, splits, fields = {}, given = {} }, results) {
    const request = make(structs.request, {
      collective, name: name === undefined ? null : text(name, "name"),
      inputs: inputs ? inputs.map((t) => t.native()) : null, outputs: outputs ? outputs.map((t) => t.native()) : null,
      count: (inputs ?? outputs ?? []).length, splits: splits ?? null, split_count: splits?.length ?? 0,
      priority: given.priority === undefined ? 0 : integer(given.priority, "priority", -(2 ** 31), 2 ** 31 - 1),
      timeout_ns: nanoseconds(given.timeout, "timeout"), process_set: given.processSet?.native ?? null, ...fields,
    });
    if (given.processSet !== undefined && !(given.processSet instanceof ProcessSet)) {
      throw new TypeError(`processSet is ${shown(given.processSet)}: expected a ProcessSet`);
    }
    const made = [null];
    call("submit", this.native, request, made);
    const [op] = made;
    const borrowed = { inputs, outputs, splits };
    this.#pending.add(borrowed);
    this.#calls++;
    let completed = false;
    try {
      const done = [0], fd = [-1];
      for (call("op_test", op, done); !done[0]; call("op_test", op, done)) {
        call("op_get_fd", op, fd);
        await readable(fd[0]).promise;
      }
      completed = true;
      call("op_get_error", op);
      return results ? results(op) : undefined;
    } finally {
      plain.op_destroy(op);
      if (completed) this.#pending.delete(borrowed); // else the library may write to it still
      if (--this.#calls === 0) this.#idle.splice(0).forEach((resolve) => resolve());
    }
  }

  static #factors(given) {
    return {
      reduction: choice(given.op ?? "sum", reductions, "op"),
      prescale: given.prescale === undefined ? 0 : number(given.prescale, "prescale"),
      postscale: given.postscale === undefined ? 0 : number(given.postscale, "postscale"),
    };
  }

  static #allocated(op, index = 0) {
    const native = make(structs.tensor);
    call("op_get_output", op, index, native);
    return copied(native);
  }

  async allreduce(name, input, given) {
    given = options(given, ["op", "prescale", "postscale", "output", ...anyOp], "options of allreduce");
    const from = tensor(input, "input"), to = given.output === undefined ? from : tensor(given.output, "output");
    await this.#run(name, ALLREDUCE, { inputs: [from], outputs: [to], fields: Context.#factors(given), given });
    return to.data;
  }

  async groupedAllreduce(name, inputs, given) {
    given = options(given, ["op", "prescale", "postscale", "outputs", ...anyOp], "options of groupedAllreduce");
    const from = tensors(inputs, "inputs");
    const to = given.outputs === undefined ? from : tensors(given.outputs, "outputs");
    if (to.length !== from.length) throw new RangeError(`outputs has ${to.length} arrays: expected ${from.length}`);
    const fields = Context.#factors(given);
    if (from.length === 0) await this.#run(name, BARRIER, { given }); // a group of nothing, as in hvd.h
    else await this.#run(name, ALLREDUCE, { inputs: from, outputs: to, fields, given });
    return to.map((t) => t.data);
  }

  async broadcast(name, array, root = 0, given) {
    given = options(given, anyOp, "options of broadcast");
    const to = tensor(array, "array");
    await this.#run(name, BROADCAST, { outputs: [to], fields: { root: integer(root, "root", 0, 2 ** 31 - 1) }, given });
    return to.data;
  }

  async broadcastVariables(name, arrays, root = 0, given) {
    given = options(given, anyOp, "options of broadcastVariables");
    const to = tensors(arrays, "arrays"), fields = { root: integer(root, "root", 0, 2 ** 31 - 1) };
    if (to.length === 0) await this.#run(name, BARRIER, { given });
    else await this.#run(name, BROADCAST, { outputs: to, fields, given });
  }

  /** Resolves to a Tensor: rows of all ranks, in rank order. */
  async allgather(name, input, given) {
    given = options(given, anyOp, "options of allgather");
    return this.#run(name, ALLGATHER, { inputs: [tensor(input, "input")], given }, (op) => Context.#allocated(op));
  }

  async reducescatter(name, input, given) {
    given = options(given, ["op", "prescale", "postscale", ...anyOp], "options of reducescatter");
    return this.#run(name, REDUCESCATTER, { inputs: [tensor(input, "input")], fields: Context.#factors(given), given },
                     (op) => Context.#allocated(op));
  }

  /** Resolves to { output, receivedSplits }. splits: rows to each rank; undefined: evenly. */
  async alltoall(name, input, splits, given) {
    given = options(given, anyOp, "options of alltoall");
    const rows = splits === undefined ? undefined : Array.from(splits, (n, i) => integer(n, `splits[${i}]`, 0, 2 ** 53 - 1));
    return this.#run(name, ALLTOALL, { inputs: [tensor(input, "input")], splits: rows, given }, (op) => {
      const size = given.processSet ? given.processSet.place.size : this.size;
      const received = new BigInt64Array(size), count = [size];
      call("op_get_received_splits", op, received, count);
      return { output: Context.#allocated(op), receivedSplits: Array.from(received.subarray(0, Number(count[0])), Number) };
    });
  }

  async barrier(name, given) {
    await this.#run(name, BARRIER, { given: options(given, anyOp, "options of barrier") });
  }

  /** For a rank that has run out of data. Resolves to the rank that joined last. */
  async join(given) {
    given = options(given, ["timeout"], "options of join");
    return this.#run(undefined, JOIN, { given }, (op) => {
      const last = [-1];
      call("op_get_last_joined", op, last);
      return last[0];
    });
  }

  /** Bytes (Uint8Array) of root's, whose length the others need not know. */
  async broadcastObject(name, bytes, root = 0) {
    integer(root, "root", 0, 2 ** 31 - 1);
    const mine = this.rank === root;
    if (mine && !(bytes instanceof Uint8Array)) throw new TypeError(`bytes are ${shown(bytes)}: expected a Uint8Array`);
    const source = mine ? tensor(bytes, "bytes") : undefined;
    const data = [mine && source.bytes > 0 ? source.address : null], size = [mine ? source.bytes : 0];
    await this.blocking("broadcast_object", this, text(name, "name"), data, size, root);
    if (mine) return bytes;
    try {
      return size[0] > 0 ? new Uint8Array(koffi.view(data[0], Number(size[0]))).slice() : new Uint8Array(0);
    } finally {
      plain.free(data[0]);
    }
  }

  /** A subset of the ranks. rule: who is in it when the ranks have changed. */
  createProcessSet(name, ranks, rule = "workers") {
    const list = ranks == null ? null : Array.from(ranks, (r, i) => integer(r, `ranks[${i}]`, 0, 2 ** 31 - 1));
    const set = [null];
    call("process_set_create", this.native, text(name, "name"), list, list?.length ?? 0, choice(rule, rules, "rule"), set);
    return new ProcessSet(set[0]);
  }

  // ---- Events ----

  /** What happens to the job, until the context is closed. The process does not stay for it. */
  async *events() {
    if (this.#events) throw new HvdError("events", Status.INVALID,
      { message: "somebody takes them already: expected one at a time", rank: -1, generation: 0, backend: "", vendor_code: 0 });
    const fd = [-1];
    call("get_event_fd", this.native, fd);
    this.#events = { stopped: false, cancel: () => {} };
    const own = this.#events;
    try {
      while (!own.stopped) {
        const event = make(structs.event), available = [0];
        call("next_event", this.native, event, available);
        if (!available[0]) {
          const watch = readable(fd[0], { keeps: false });
          own.cancel = watch.cancel;
          await watch.promise;
          continue;
        }
        yield {
          kind: kinds.get(event.kind) ?? event.kind, lost: event.lost, sequence: Number(event.sequence),
          generation: Number(event.generation), membershipEpoch: Number(event.membership_epoch), rank: event.rank,
          size: event.size, message: event.message,
        };
      }
    } catch (error) {
      if (error.status !== Status.CLOSED) throw error;
    } finally {
      this.#events = undefined;
    }
  }

  #stopEvents() {
    if (!this.#events) return;
    this.#events.stopped = true;
    this.#events.cancel();
  }

  // ---- The end ----

  /** Says that this worker is done, and leaves when all are. */
  async shutdown(given) {
    const { timeout } = options(given, ["timeout"], "options of shutdown");
    try {
      await this.blocking("shutdown", this, nanoseconds(timeout, "timeout"));
    } finally {
      this.#stopEvents();
    }
  }

  /** Closes at once: every call that is under way fails with HVD_CLOSED. */
  abort(reason = "abort was called") {
    if (!this.#handle) return;
    call("abort", this.#handle, text(reason, "reason"));
    this.#stopEvents();
  }

  /** Frees the context when no call is under way any more: aborts it if it was not shut down. */
  async destroy() {
    if (!this.#handle) return;
    const native = this.#handle;
    this.abort("the context is destroyed");
    this.#handle = null;
    alive.delete(this);
    if (this.#calls > 0) await new Promise((resolve) => this.#idle.push(resolve));
    await plainAsync("destroy", native);
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.destroy();
  }
}
