// include/hvd/hvd.h in koffi: structs, prototypes, and calls that throw what went wrong.
import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import koffi from "koffi";
import { ABI_VERSION, MAX_DIMS } from "./constants.js";
import { HvdError, fail } from "./errors.js";

const FILE = `libhvd.so.${ABI_VERSION}`;

// Calls that may block run on threads of Node's pool, on stacks of koffi's. 128 KiB, its default, is little
// for TLS.
try {
  koffi.config({ async_stack_size: 1 << 20 });
} catch {
  // Another package has used koffi before: its settings stand.
}

function load() {
  const chosen = process.env.HVD_LIBRARY;
  const path = !chosen ? FILE : existsSync(chosen) && statSync(chosen).isDirectory() ? join(chosen, FILE) : chosen;
  let library;
  try {
    library = koffi.load(path);
  } catch (error) {
    throw new Error(`libhvd can't be loaded (HVD_LIBRARY can name its file or directory): ${error.message}`);
  }
  let version;
  try {
    version = library.func("const char *hvd_version()")();
  } catch {
    throw new Error(`${path} is no libhvd: it has no function hvd_version`);
  }
  const [major, minor] = version.split(".").map(Number);
  if (major !== 0 || minor < 2) throw new Error(`${path} is version ${version}: expected 0.2 or a later 0.x`);
  return { library, path, version };
}
export const { library, path: libraryPath, version } = load();

for (const name of ["context", "options", "state", "run_loop", "op", "process_set"]) koffi.opaque(`hvd_${name}`);
const struct = (name, fields) => koffi.struct(name, { struct_size: "size_t", ...fields });
const place = { rank: "int32", size: "int32", local_rank: "int32", local_size: "int32", cross_rank: "int32",
                cross_size: "int32", generation: "uint64" };
export const structs = {
  error: struct("hvd_error", { status: "int32", rank: "int32", generation: "uint64", vendor_code: "int64",
    backend: koffi.array("char", 16), message: koffi.array("char", 512) }),
  tensor: struct("hvd_tensor", { data: "void *", dtype: "int32", ndim: "int32", shape: koffi.array("int64", MAX_DIMS),
    memory: "int32", device: "int32", stream: "void *" }),
  membership: struct("hvd_membership_info", { ...place, membership_epoch: "uint64", worker: "uint64" }),
  processSet: struct("hvd_process_set_info", place),
  backend: struct("hvd_backend_info", { name: koffi.array("char", 16), version: koffi.array("char", 64),
    path: koffi.array("char", 512), detail: koffi.array("char", 256), dtypes: "uint64", collectives: "uint64" }),
  request: struct("hvd_request", { collective: "int32", root: "int32", name: "const char *", inputs: "hvd_tensor *",
    outputs: "hvd_tensor *", count: "size_t", reduction: "int32", priority: "int32", prescale: "double",
    postscale: "double", splits: "int64 *", split_count: "size_t", process_set: "hvd_process_set *",
    timeout_ns: "int64" }),
  state: struct("hvd_state_info", { revision: "uint64", commits: "uint64", restores: "uint64", syncs: "uint64",
    bytes: "uint64", sync_sent_bytes: "uint64", sync_received_bytes: "uint64", last_commit_ns: "int64" }),
  recovery: struct("hvd_recovery_info", { from_generation: "uint64", to_generation: "uint64", cause: "int32",
    from_size: "int32", to_size: "int32", attempts: "int32", revision: "uint64", began_at_ns: "int64",
    detection_ns: "int64", abort_ns: "int64", restore_ns: "int64", forming_ns: "int64", connecting_ns: "int64",
    sync_ns: "int64", total_ns: "int64", sync_bytes: "uint64", reason: koffi.array("char", 256) }),
  event: struct("hvd_event", { kind: "uint32", lost: "uint32", sequence: "uint64", generation: "uint64",
    membership_epoch: "uint64", rank: "int32", size: "int32", message: koffi.array("char", 256) }),
};
export const callbacks = {
  write: koffi.proto("int32_t hvd_write_fn(void *sink, const void *data, size_t size)"),
  save: koffi.proto("int32 hvd_save_fn(void *userdata, void *write, void *sink)"),
  load: koffi.proto("int32 hvd_load_fn(void *userdata, const void *data, size_t size)"),
  reset: koffi.proto("int32 hvd_reset_fn(void *userdata)"),
};

// All that return a status take the error last.
const functions = Object.fromEntries([
  ["options_create", "_Out_ hvd_options **options"],
  ["options_set", "hvd_options *options, const char *key, const char *text"],
  ["init", "hvd_options *options, _Out_ hvd_context **context"],
  ["shutdown", "hvd_context *context, int64 timeout_ns"],
  ["abort", "hvd_context *context, const char *reason"],
  ["get_membership", "hvd_context *context, _Inout_ hvd_membership_info *info"],
  ["get_backend", "hvd_context *context, _Inout_ hvd_backend_info *info"],
  ["process_set_create", "hvd_context *context, const char *name, int32 *ranks, size_t count, int32 rule, " +
                         "_Out_ hvd_process_set **set"],
  ["process_set_get_info", "hvd_process_set *set, _Inout_ hvd_process_set_info *info"],
  ["submit", "hvd_context *context, hvd_request *request, _Out_ hvd_op **op"],
  ["broadcast_object", "hvd_context *context, const char *name, _Inout_ void **data, _Inout_ size_t *size, int32 root"],
  ["op_test", "hvd_op *op, _Out_ int32 *done"],
  ["op_get_fd", "hvd_op *op, _Out_ int32 *fd"],
  ["op_get_error", "hvd_op *op"],
  ["op_get_output", "hvd_op *op, size_t index, _Inout_ hvd_tensor *output"],
  ["op_get_received_splits", "hvd_op *op, void *splits, _Inout_ size_t *count"],
  ["op_get_last_joined", "hvd_op *op, _Out_ int32 *rank"],
  ["state_create", "hvd_context *context, _Out_ hvd_state **state"],
  ["state_add_tensor", "hvd_state *state, const char *key, hvd_tensor *tensor"],
  ["state_add_value", "hvd_state *state, const char *key, void *value, size_t size"],
  ["state_add_object", "hvd_state *state, const char *key, hvd_save_fn *save, hvd_load_fn *load, void *userdata, " +
                       "void *destroy"],
  ["state_on_reset", "hvd_state *state, hvd_reset_fn *reset, void *userdata, void *destroy"],
  ["state_remove", "hvd_state *state, const char *key"],
  ["state_set_data", "hvd_state *state, const char *key, void *data"],
  ["state_commit", "hvd_state *state"],
  ["state_save", "hvd_state *state"],
  ["state_check_host_updates", "hvd_state *state"],
  ["state_restore", "hvd_state *state"],
  ["state_sync", "hvd_state *state"],
  ["state_get_info", "hvd_state *state, _Inout_ hvd_state_info *info"],
  ["run_begin", "hvd_context *context, hvd_state *state, _Out_ hvd_run_loop **loop"],
  ["run_next", "hvd_run_loop *loop, int32 last, _Out_ int32 *again"],
  ["get_recovery_count", "hvd_context *context, _Out_ size_t *count"],
  ["get_recovery", "hvd_context *context, size_t index, _Inout_ hvd_recovery_info *info"],
  ["get_event_fd", "hvd_context *context, _Out_ int32 *fd"],
  ["next_event", "hvd_context *context, _Inout_ hvd_event *event, _Out_ int32 *available"],
].map(([name, parameters]) =>
  [name, library.func(`int32 hvd_${name}(${parameters}, _Inout_ hvd_error *error)`)]));

export const plain = Object.fromEntries(Object.entries({
  options_destroy: "void hvd_options_destroy(hvd_options *options)",
  destroy: "void hvd_destroy(hvd_context *context)",
  process_set_destroy: "void hvd_process_set_destroy(hvd_process_set *set)",
  op_destroy: "void hvd_op_destroy(hvd_op *op)",
  state_destroy: "void hvd_state_destroy(hvd_state *state)",
  state_revision: "uint64 hvd_state_revision(hvd_state *state)",
  run_end: "void hvd_run_end(hvd_run_loop *loop)",
  free: "void hvd_free(void *memory)",
  dtype_size: "size_t hvd_dtype_size(int32 dtype)",
}).map(([name, prototype]) => [name, library.func(prototype)]));

const sizes = new Map(Object.values(structs).map((type) => [type, koffi.sizeof(type)]));
/** An object for a struct, zero but for its size and what is given. */
export function make(type, fields = {}) {
  const value = { struct_size: sizes.get(type) };
  for (const [name, member] of Object.entries(type.members)) {
    if (name === "struct_size") continue;
    const kind = member.type;
    value[name] = kind.primitive === "Pointer" || kind.primitive === "String" ? null
      : kind.primitive === "Array" ? (kind.hint === "String" ? "" : new Array(kind.length).fill(0)) : 0;
  }
  return Object.assign(value, fields);
}

const newError = () => make(structs.error, { rank: -1 });

/** Calls hvd_<name>, which does not block, and throws an HvdError if it fails. */
export function call(name, ...values) {
  const error = newError();
  const status = functions[name](...values, error);
  if (status !== 0) fail(`hvd_${name}`, status, error);
}

/** Calls hvd_<name>, which may block, on a thread of Node's pool. */
export function callAsync(name, ...values) {
  return new Promise((resolve, reject) => {
    const error = newError();
    functions[name].async(...values, error, (failure, status) => {
      if (failure) reject(failure);
      else if (status !== 0) reject(new HvdError(`hvd_${name}`, status, error));
      else resolve();
    });
  });
}

/** The same for functions that return nothing. */
export const plainAsync = (name, ...values) => new Promise((resolve, reject) => {
  plain[name].async(...values, (failure) => (failure ? reject(failure) : resolve()));
});
