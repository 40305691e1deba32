// The job of examples/minimal.c in Node, with nothing but the header's facts and koffi (npm install koffi):
//   hvdrun -np 2 -- node minimal.mjs
// It fits y = 2x + 1, each worker on its own points. Any worker may die or join at any time.
import koffi from "koffi";

const library = koffi.load(process.env.HVD_LIBRARY ?? "libhvd.so.1");

// As in hvd.h. Every struct begins with its own size, so that a later library still knows this one.
const HvdError = koffi.struct("hvd_error", {
  struct_size: "size_t", status: "int32", rank: "int32", generation: "uint64", vendor_code: "int64",
  backend: koffi.array("char", 16), message: koffi.array("char", 512),
});
const HvdTensor = koffi.struct("hvd_tensor", {
  struct_size: "size_t", data: "void *", dtype: "int32", ndim: "int32", shape: koffi.array("int64", 8),
  memory: "int32", device: "int32", stream: "void *",
});
for (const name of ["hvd_context", "hvd_state", "hvd_run_loop", "hvd_options"]) koffi.opaque(name);
const OK = 0, FLOAT32 = 11, AVERAGE = 2, DEFAULT_TIMEOUT = 0;
const PEER_LOST = 1, HOSTS_UPDATED = 2;

const hvd = Object.fromEntries([
  ["status_name", "const char *hvd_status_name(int32 status)"],
  ["init", "int32 hvd_init(hvd_options *options, _Out_ hvd_context **context, _Inout_ hvd_error *error)"],
  ["rank", "int32 hvd_rank(hvd_context *context)"],
  ["size", "int32 hvd_size(hvd_context *context)"],
  ["allreduce", "int32 hvd_allreduce(hvd_context *context, const char *name, hvd_tensor *input, " +
                "_Inout_ hvd_tensor *output, int32 reduction, _Inout_ hvd_error *error)"],
  ["state_create", "int32 hvd_state_create(hvd_context *context, _Out_ hvd_state **state, _Inout_ hvd_error *error)"],
  ["state_add_tensor", "int32 hvd_state_add_tensor(hvd_state *state, const char *key, hvd_tensor *tensor, " +
                       "_Inout_ hvd_error *error)"],
  ["state_add_value", "int32 hvd_state_add_value(hvd_state *state, const char *key, void *value, size_t size, " +
                      "_Inout_ hvd_error *error)"],
  ["state_commit", "int32 hvd_state_commit(hvd_state *state, _Inout_ hvd_error *error)"],
  ["state_destroy", "void hvd_state_destroy(hvd_state *state)"],
  ["run_begin", "int32 hvd_run_begin(hvd_context *context, hvd_state *state, _Out_ hvd_run_loop **loop, " +
                "_Inout_ hvd_error *error)"],
  ["run_next", "int32 hvd_run_next(hvd_run_loop *loop, int32 last, _Out_ int32 *again, _Inout_ hvd_error *error)"],
  ["run_end", "void hvd_run_end(hvd_run_loop *loop)"],
  ["shutdown", "int32 hvd_shutdown(hvd_context *context, int64 timeout_ns, _Inout_ hvd_error *error)"],
  ["destroy", "void hvd_destroy(hvd_context *context)"],
].map(([name, prototype]) => [name, library.func(prototype)]));

const newError = () => ({
  struct_size: koffi.sizeof(HvdError), status: 0, rank: -1, generation: 0, vendor_code: 0, backend: "", message: "",
});
/** Calls a function whose last parameter is the error; throws what went wrong. */
function must(name, ...values) {
  const error = newError();
  const status = hvd[name](...values, error);
  if (status === OK) return;
  throw Object.assign(new Error(`hvd_${name}: ${hvd.status_name(status)}: ${error.message}`), { status });
}
/** The memory of a typed array stays where it is as long as the array lives: no copy is made of it. */
const floats = (values) => ({
  struct_size: koffi.sizeof(HvdTensor), data: values, dtype: FLOAT32, ndim: 1,
  shape: [values.length, 0, 0, 0, 0, 0, 0, 0], memory: 0, device: 0, stream: null,
});

const context = [null], state = [null], loop = [null], again = [0];
must("init", null, context);
must("state_create", context[0], state);
const weights = new Float32Array(2), gradient = new Float32Array(2), step = new BigInt64Array(1);
must("state_add_tensor", state[0], "w", floats(weights));
must("state_add_value", state[0], "step", step, step.byteLength);

function train() {
  while (step[0] < 2000n) {
    const x = (Number(step[0]) * hvd.size(context[0]) + hvd.rank(context[0])) % 17 / 17;
    const wrong = weights[0] * x + weights[1] - (2 * x + 1);
    gradient.set([wrong * x, wrong]);
    must("allreduce", context[0], "gradient", floats(gradient), floats(gradient), AVERAGE);
    weights[0] -= 0.5 * gradient[0];
    weights[1] -= 0.5 * gradient[1];
    if (++step[0] % 10n === 0n) must("state_commit", state[0]);
  }
}

must("run_begin", context[0], state[0], loop);
for (let last = OK; must("run_next", loop[0], last, again), again[0];) {
  try {
    train();
    last = OK;
  } catch (error) {
    // A loss or a change of hosts is what the loop is for; anything else ends it.
    if (error.status !== PEER_LOST && error.status !== HOSTS_UPDATED) throw error;
    last = error.status;
  }
}
hvd.run_end(loop[0]);
console.log(`rank ${hvd.rank(context[0])} of ${hvd.size(context[0])}: y = ${weights[0].toFixed(2)}x + ${weights[1].toFixed(2)}`);
must("shutdown", context[0], DEFAULT_TIMEOUT);
hvd.state_destroy(state[0]);
hvd.destroy(context[0]);
