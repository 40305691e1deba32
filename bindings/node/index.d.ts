/** Elastic distributed training: libhvd for Node. docs/node.md is the manual. Times are in milliseconds. */

export type TypedArray = Uint8Array | Uint8ClampedArray | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array |
  BigUint64Array | BigInt64Array | Float32Array | Float64Array;
export type DType = "uint8" | "int8" | "uint16" | "int16" | "uint32" | "int32" | "uint64" | "int64" | "float16" |
  "bfloat16" | "float32" | "float64" | "bool";
export type Op = "sum" | "average" | "min" | "max" | "product";

/** A typed array with a shape and a dtype, where these are not one dimension and the array's own type. */
export class Tensor<T extends TypedArray = TypedArray> {
  constructor(data: T, options?: { shape?: readonly number[]; dtype?: DType });
  readonly data: T;
  readonly shape: readonly number[];
  readonly dtype: DType;
}

/** Values of hvd_status. */
export const Status: Readonly<{
  OK: 0; PEER_LOST: 1; HOSTS_UPDATED: 2; MISMATCH: 3; INVALID: 4; TIMEOUT: 5; CLOSED: 6; REMOVED: 7; DRIVER_LOST: 8;
  REFUSED: 9; UNAVAILABLE: 10; UNSUPPORTED: 11; CALLBACK_FAILED: 12; JOB_FAILED: 13; INTERNAL: 14;
}>;

/** What the library reports. A training function lets it through to run(). */
export class HvdError extends Error {
  readonly status: number;
  /** "HVD_PEER_LOST" and so on. */
  readonly code: string;
  /** Rank that is to blame, or -1. */
  readonly rank: number;
  readonly generation: number;
  readonly backend: string;
  /** errno, MPI or NCCL code, or 0. */
  readonly vendorCode: number;
  cause?: unknown;
}

export interface Place {
  /** -1 in a process set that this worker is no member of. */
  rank: number; size: number; localRank: number; localSize: number; crossRank: number; crossSize: number;
  generation: number;
}
export interface Membership extends Place { membershipEpoch: number; worker: bigint; }
export interface BackendInfo { name: string; version: string; path: string; detail: string; }
export interface Recovery {
  fromGeneration: number; toGeneration: number; cause: number; fromSize: number; toSize: number; attempts: number;
  revision: number; detection: number; abort: number; restore: number; forming: number; connecting: number; sync: number;
  total: number; syncBytes: number; reason: string;
}
export interface Event {
  kind: "hostsUpdated" | "peerLost" | "generation" | "jobEnded" | "driverLost" | "recovered" | "stalled" |
    "diverged" | "driverBack" | number;
  lost: number; sequence: number; generation: number; membershipEpoch: number; rank: number; size: number; message: string;
}

export class ProcessSet {
  private constructor();
  readonly place: Place;
  destroy(): void;
}

export interface AnyOptions {
  processSet?: ProcessSet;
  /** Of operations that are ready, higher ones run first. */
  priority?: number;
  /** Wait for ranks that do not call. */
  timeout?: number;
}
export interface ReduceOptions extends AnyOptions { op?: Op; prescale?: number; postscale?: number; }

type Array_ = TypedArray | Tensor;

/** One worker. Every method that may take time returns a promise; Node's event loop goes on meanwhile. */
export class Context implements AsyncDisposable {
  /** Joins the job. Keys are those of docs/options.md; what is left out comes from the environment. */
  static init(settings?: Record<string, string | number | boolean | bigint>): Promise<Context>;
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly crossRank: number;
  readonly crossSize: number;
  readonly generation: number;
  readonly membership: Membership;
  readonly backend: BackendInfo;
  readonly recoveries: Recovery[];

  /** In place, or into options.output. Resolves to the array that holds the result. */
  allreduce(name: string, input: Array_, options?: ReduceOptions & { output?: Array_ }): Promise<TypedArray>;
  groupedAllreduce(name: string, inputs: Array_[], options?: ReduceOptions & { outputs?: Array_[] }): Promise<TypedArray[]>;
  broadcast(name: string, array: Array_, root?: number, options?: AnyOptions): Promise<TypedArray>;
  broadcastVariables(name: string, arrays: Array_[], root?: number, options?: AnyOptions): Promise<void>;
  /** Rows (first dimension) of all ranks, in rank order. */
  allgather(name: string, input: Array_, options?: AnyOptions): Promise<Tensor>;
  /** This rank's share of the rows of the reduction. */
  reducescatter(name: string, input: Array_, options?: ReduceOptions): Promise<Tensor>;
  /** splits: rows to each rank; undefined: evenly. */
  alltoall(name: string, input: Array_, splits?: readonly number[], options?: AnyOptions):
    Promise<{ output: Tensor; receivedSplits: number[] }>;
  barrier(name: string, options?: AnyOptions): Promise<void>;
  /** For a rank that has run out of data. Resolves to the rank that joined last. */
  join(options?: { timeout?: number }): Promise<number>;
  /** Bytes of root's, whose length the others need not know. */
  broadcastObject(name: string, bytes: Uint8Array | undefined, root?: number): Promise<Uint8Array>;
  createProcessSet(name: string, ranks: Iterable<number> | null,
                   rule?: "workers" | "ranks" | "local" | "cross" | "end"): ProcessSet;

  /** What happens to the job, until the context is closed. One consumer at a time. The process does not
   * stay for it. */
  events(): AsyncGenerator<Event, void, void>;

  /** Says that this worker is done, and leaves when all are. */
  shutdown(options?: { timeout?: number }): Promise<void>;
  /** Closes at once: every call that is under way fails with HVD_CLOSED. */
  abort(reason?: string): void;
  /** Frees the context when no call is under way any more; aborts it if it was not shut down. */
  destroy(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** What must survive. Every rank registers the same keys. One call at a time. */
export class State implements Disposable {
  constructor(context: Context);
  readonly context: Context;
  readonly revision: number;
  readonly info: {
    revision: number; commits: number; restores: number; syncs: number; bytes: number; syncSentBytes: number;
    syncReceivedBytes: number; lastCommit: number;
  };
  /** The library copies to and from the array's own memory until the key is removed. */
  addTensor(key: string, value: Array_): this;
  /** A small typed array (1 to 65536 bytes) as plain bytes: a counter is a BigInt64Array(1). */
  addValue(key: string, value: Array_): this;
  addObject(key: string, callbacks: { save(): Uint8Array; load(bytes: Uint8Array): void }): this;
  /** Runs in survivors when a new generation is synced, before the training function is called again. */
  onReset(reset: () => void): this;
  setData(key: string, value: Array_): void;
  remove(key: string): void;
  commit(): Promise<void>;
  save(): Promise<void>;
  checkHostUpdates(): Promise<void>;
  restore(): Promise<void>;
  sync(): Promise<void>;
  /** Before its context's destroy(). */
  destroy(): void;
  [Symbol.dispose](): void;
}

/** Calls `train` until it is complete; an HvdError of a loss or of changed hosts makes it call again. */
export function run(state: State, train: () => void | Promise<void>): Promise<void>;

/** "major.minor.patch" of the library that is loaded, and its file. */
export const version: string;
export const libraryPath: string;
