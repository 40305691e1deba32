// What must survive: typed arrays in their own memory, and objects as bytes.
import koffi from "koffi";
import { call, callbacks, make, plain, structs } from "./abi.js";
import { Context } from "./context.js";
import { fail, HvdError, shown, Status, text } from "./errors.js";
import { tensor } from "./tensor.js";

export class State {
  #context;
  #handle;
  #arrays = new Map(); // key: Tensor, whose memory the library holds
  #callbacks = [];
  #thrown; // by a callback: the cause of HVD_CALLBACK_FAILED
  #busy = false;

  constructor(context) {
    if (!(context instanceof Context)) throw new TypeError(`context is ${shown(context)}: expected a Context`);
    this.#context = context;
    const made = [null];
    call("state_create", context.native, made);
    [this.#handle] = made;
  }

  /** @internal */
  get native() {
    if (!this.#handle) {
      fail("hvd", Status.CLOSED, { message: "the state was destroyed", rank: -1, generation: 0, backend: "", vendor_code: 0 });
    }
    return this.#handle;
  }
  get context() { return this.#context; }

  /** Registers a typed array (or a Tensor). The library copies to and from its memory until it is removed. */
  addTensor(key, value) {
    const array = tensor(value, "value");
    call("state_add_tensor", this.native, text(key, "key"), array.native());
    this.#arrays.set(key, array);
    return this;
  }

  /** Says that another array is the memory of a key of addTensor() or addValue(), of the same dtype and
   * shape. Nothing is copied: the next commit takes what it holds then, restore and sync write there. */
  setData(key, value) {
    const array = tensor(value, "value");
    const before = this.#arrays.get(key);
    if (before === undefined) {
      throw new RangeError(`key is ${shown(key)}: expected that of an array of the state`);
    }
    if (array.dtype !== before.dtype || String(array.shape) !== String(before.shape)) {
      throw new TypeError(`value is ${array.dtype}[${array.shape}]: expected ${before.dtype}[${before.shape}], ` +
                          "as it was");
    }
    this.#idle("setData");
    call("state_set_data", this.native, text(key, "key"), array.bytes > 0 ? array.address : null);
    this.#arrays.set(key, array);
  }

  /** Registers a small typed array as plain bytes: a counter is a BigInt64Array(1). */
  addValue(key, value) {
    const array = tensor(value, "value");
    if (array.bytes < 1 || array.bytes > 65536) {
      throw new RangeError(`value has ${array.bytes} bytes: expected 1 to 65536`);
    }
    call("state_add_value", this.native, text(key, "key"), array.address, array.bytes);
    this.#arrays.set(key, array);
    return this;
  }

  /** Registers an object: save() returns its bytes, load(bytes) takes such bytes. Both are synchronous. */
  addObject(key, { save, load } = {}) {
    for (const [name, value] of Object.entries({ save, load })) {
      if (typeof value !== "function") throw new TypeError(`${name} is ${shown(value)}: expected a function`);
    }
    const guarded = (work) => {
      try {
        work();
        return 0;
      } catch (error) {
        this.#thrown = error;
        return 1;
      }
    };
    const onSave = koffi.register((_, write, sink) => guarded(() => {
      const bytes = save();
      if (!(bytes instanceof Uint8Array)) throw new TypeError(`save returned ${shown(bytes)}: expected a Uint8Array`);
      if (bytes.byteLength > 0) koffi.call(write, callbacks.write, sink, bytes, bytes.byteLength);
    }), koffi.pointer(callbacks.save));
    const onLoad = koffi.register((_, data, size) => guarded(() => {
      load(Number(size) > 0 ? new Uint8Array(koffi.view(data, Number(size))).slice() : new Uint8Array(0));
    }), koffi.pointer(callbacks.load));
    this.#register([onSave, onLoad], () =>
      call("state_add_object", this.native, text(key, "key"), onSave, onLoad, null, null));
    return this;
  }

  /** Runs in survivors when a new generation is formed and synced, before the training function.
   * Synchronous. */
  onReset(reset) {
    if (typeof reset !== "function") throw new TypeError(`reset is ${shown(reset)}: expected a function`);
    const onReset = koffi.register(() => {
      try {
        reset();
        return 0;
      } catch (error) {
        this.#thrown = error;
        return 1;
      }
    }, koffi.pointer(callbacks.reset));
    this.#register([onReset], () => call("state_on_reset", this.native, onReset, null, null));
    return this;
  }

  #register(registered, work) {
    try {
      work();
      this.#callbacks.push(...registered);
    } catch (error) {
      registered.forEach((callback) => koffi.unregister(callback));
      throw error;
    }
  }

  remove(key) {
    this.#idle("remove");
    call("state_remove", this.native, text(key, "key"));
    this.#arrays.delete(key);
  }

  #idle(what) {
    if (!this.#busy) return;
    fail(what, Status.INVALID, { message: "a call on this state is under way: expected to be awaited first", rank: -1,
                                 generation: 0, backend: "", vendor_code: 0 });
  }

  /** @internal One call at a time, on memory that is still there. */
  async blocking(name, ...values) {
    this.#idle(name);
    for (const [key, array] of this.#arrays) array.check(`the array of key '${key}'`);
    this.#busy = true;
    this.#thrown = undefined;
    try {
      await this.#context.blocking(name, ...values);
    } catch (error) {
      if (error.status === Status.CALLBACK_FAILED && this.#thrown !== undefined) error.cause = this.#thrown;
      throw error;
    } finally {
      this.#busy = false;
    }
  }

  commit() { return this.blocking("state_commit", this.native); }
  save() { return this.blocking("state_save", this.native); }
  checkHostUpdates() { return this.blocking("state_check_host_updates", this.native); }
  restore() { return this.blocking("state_restore", this.native); }
  sync() { return this.blocking("state_sync", this.native); }

  get revision() { return Number(plain.state_revision(this.native)); }
  get info() {
    const info = make(structs.state);
    call("state_get_info", this.native, info);
    return {
      revision: Number(info.revision), commits: Number(info.commits), restores: Number(info.restores),
      syncs: Number(info.syncs), bytes: Number(info.bytes), syncSentBytes: Number(info.sync_sent_bytes),
      syncReceivedBytes: Number(info.sync_received_bytes), lastCommit: Number(info.last_commit_ns) / 1e6,
    };
  }

  /** Before its context's destroy(). */
  destroy() {
    if (!this.#handle) return;
    this.#idle("destroy");
    plain.state_destroy(this.#handle);
    this.#handle = null;
    this.#callbacks.splice(0).forEach((callback) => koffi.unregister(callback));
    this.#arrays.clear();
  }

  [Symbol.dispose ?? Symbol.for("Symbol.dispose")]() {
    this.destroy();
  }
}

/** Calls `train` until it is complete: what hvd_run does. An error that is no HvdError ends the loop and is
 * thrown. */
export async function run(state, train) {
  if (!(state instanceof State)) throw new TypeError(`state is ${shown(state)}: expected a State`);
  if (typeof train !== "function") throw new TypeError(`train is ${shown(train)}: expected a function`);
  const made = [null];
  call("run_begin", state.context.native, state.native, made);
  const [loop] = made;
  try {
    let last = Status.OK;
    let cause;
    for (;;) {
      const again = [0];
      try {
        await state.blocking("run_next", loop, last, again);
      } catch (error) {
        // The loop gives the function's own status back: what it threw says more.
        throw cause !== undefined && error.status === last ? cause : error;
      }
      if (!again[0]) return;
      try {
        await train();
        last = Status.OK;
        cause = undefined;
      } catch (error) {
        cause = error;
        last = error instanceof HvdError ? error.status : Status.CALLBACK_FAILED;
      }
    }
  } finally {
    plain.run_end(loop);
  }
}

