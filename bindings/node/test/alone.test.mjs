// A worker that is alone: rank 0 of 1. What is refused, and how; what survives a restore.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Context, HvdError, State, Status, Tensor, run, version } from "hvd";

async function alone(work) {
  const context = await Context.init({ log_level: "off" });
  try {
    await work(context);
  } finally {
    await context.destroy();
  }
}

test("the place of a worker that is alone", () => alone(async (context) => {
  assert.match(version, /^0\.\d+\.\d+$/);
  assert.equal(context.rank, 0);
  assert.equal(context.size, 1);
  assert.equal(context.backend.name, "self");
  assert.deepEqual(context.recoveries, []);
}));

test("collectives of one rank", () => alone(async (context) => {
  const x = new Float32Array([1, 2, 3]);
  assert.equal(await context.allreduce("a", x, { op: "sum", postscale: 2 }), x);
  assert.deepEqual([...x], [2, 4, 6]);
  const output = new Float32Array(3);
  assert.equal(await context.allreduce("a", x, { op: "average", output }), output);
  assert.deepEqual([...output], [2, 4, 6]);
  const rows = await context.allgather("g", new Tensor(new Int32Array([1, 2, 3, 4]), { shape: [2, 2] }));
  assert.deepEqual([[...rows.data], rows.shape, rows.dtype], [[1, 2, 3, 4], [2, 2], "int32"]);
  const part = await context.reducescatter("r", new BigInt64Array([5n, 6n]));
  assert.deepEqual([...part.data], [5n, 6n]);
  const { output: exchanged, receivedSplits } = await context.alltoall("x", new Uint8Array([7, 8]), [2]);
  assert.deepEqual([[...exchanged.data], receivedSplits], [[7, 8], [2]]);
  assert.deepEqual(await context.broadcastObject("o", new Uint8Array([9])), new Uint8Array([9]));
  await context.broadcastVariables("v", [x, output]);
  assert.equal((await context.groupedAllreduce("ga", [x, output]))[1], output);
  assert.deepEqual(await context.groupedAllreduce("none", [], { op: "average" }), []);
  await context.broadcastVariables("none", []);
  await context.barrier("b");
  assert.equal(await context.join(), 0);
  const empty = await context.allgather("e", new Float64Array(0));
  assert.equal(empty.data.length, 0);
}));

test("many operations at a time", () => alone(async (context) => {
  const arrays = Array.from({ length: 64 }, (_, i) => new Float64Array(1000).fill(i));
  await Promise.all(arrays.map((array, i) => context.allreduce(`many.${i}`, array)));
  assert.equal(arrays[63][999], 63);
}));

const refused = [
  ["an array", (c) => c.allreduce("n", [1, 2]), TypeError, /input is Array of length 2: expected a typed array/],
  ["a dataview", (c) => c.allreduce("n", new DataView(new ArrayBuffer(8))), TypeError, /input is DataView/],
  ["a name", (c) => c.allreduce(5, new Float32Array(1)), TypeError, /name is 5: expected a string/],
  ["an empty name", (c) => c.allreduce("", new Float32Array(1)), HvdError, /HVD_INVALID.*name/],
  ["a NUL", (c) => c.barrier("a\0b"), RangeError, /name is "a\\u0000b": expected no NUL/],
  ["an op", (c) => c.allreduce("n", new Float32Array(1), { op: "mean" }), RangeError, /op is "mean": expected one of sum/],
  ["an option", (c) => c.allreduce("n", new Float32Array(1), { reduction: "sum" }), TypeError, /"reduction": expected op/],
  ["a factor", (c) => c.allreduce("n", new Float32Array(1), { prescale: NaN }), RangeError, /prescale is NaN/],
  ["a time", (c) => c.barrier("n", { timeout: -1 }), RangeError, /timeout is -1: expected milliseconds/],
  ["a root", (c) => c.broadcast("n", new Float32Array(1), 1.5), RangeError, /root is 1.5: expected an integer from 0/],
  ["a root that is not there", (c) => c.broadcast("n", new Float32Array(1), 7), HvdError, /HVD_INVALID.*7/],
  ["splits", (c) => c.alltoall("n", new Float32Array(2), [-1]), RangeError, /splits\[0\] is -1/],
  ["splits' sum", (c) => c.alltoall("n", new Float32Array(2), [1]), HvdError, /HVD_INVALID/],
  ["an output", (c) => c.allreduce("n", new Float32Array(2), { output: new Float64Array(2) }), HvdError, /HVD_INVALID/],
  ["a set", (c) => c.barrier("n", { processSet: {} }), TypeError, /processSet is Object/],
  ["a rule", async (c) => c.createProcessSet("s", [0], "all"), RangeError, /rule is "all": expected one of workers/],
  ["ranks", async (c) => c.createProcessSet("s", [3]), HvdError, /HVD_INVALID.*3/],
  ["bytes", (c) => c.broadcastObject("o", "text"), TypeError, /bytes are "text": expected a Uint8Array/],
  ["a shape", async () => new Tensor(new Float32Array(6), { shape: [4, 2] }), RangeError, /shape is \[4,2\]: expected .* 6 elements/],
  ["a dtype", async () => new Tensor(new Float32Array(6), { dtype: "float16" }), TypeError, /float16 has 2 bytes: expected 4/],
  ["a setting", () => Context.init({ backnd: "x" }), HvdError, /unknown option 'backnd'/],
  ["a setting's value", () => Context.init({ operation_timeout: "soon" }), HvdError, /'soon': expected a duration/],
  ["a setting's type", () => Context.init({ backend: {} }), TypeError, /option backend is Object: expected a string/],
  ["a state's context", async () => new State({}), TypeError, /context is Object: expected a Context/],
  ["a train", (c) => run(new State(c), 5), TypeError, /train is 5: expected a function/],
];
for (const [what, work, type, message] of refused) {
  test(`refused: ${what}`, () => alone((context) => assert.rejects(() => work(context), (error) => {
    assert.ok(error instanceof type, `${error}`);
    assert.match(error.message, message);
    return true;
  })));
}

test("a state keeps arrays, values and objects", () => alone(async (context) => {
  const state = new State(context);
  const weights = new Float32Array([1, 2]), step = new BigInt64Array([5n]);
  let settings = { rate: 0.5 };
  state.addTensor("weights", weights).addValue("step", step).addObject("settings", {
    save: () => Buffer.from(JSON.stringify(settings)),
    load: (bytes) => { settings = JSON.parse(Buffer.from(bytes)); },
  });
  await state.commit();
  weights.fill(9), step[0] = 6n, settings = { rate: 0.1 };
  await state.restore();
  assert.deepEqual([[...weights], step[0], settings], [[1, 2], 5n, { rate: 0.5 }]);
  assert.equal(state.revision, 1);
  assert.equal(state.info.restores, 1);
  assert.throws(() => state.addTensor("weights", weights), (error) => error.code === "HVD_INVALID" && /weights/.test(error.message));
  assert.throws(() => state.addValue("big", new Uint8Array(65537)), RangeError);
  const one = state.save();
  await assert.rejects(() => state.save(), /under way/);
  await one;
  state.destroy();
  await assert.rejects(async () => state.commit(), { code: "HVD_CLOSED" });
}));

test("an object that can't be saved leaves the last commit, and names the cause", () => alone(async (context) => {
  const state = new State(context);
  let broken = false;
  state.addObject("o", { save() { if (broken) throw new Error("no more"); return Buffer.from("x"); }, load() {} });
  await state.commit();
  broken = true;
  await assert.rejects(() => state.commit(), (error) => {
    assert.equal(error.status, Status.CALLBACK_FAILED);
    assert.match(error.cause.message, /no more/);
    return true;
  });
  assert.equal(state.revision, 1);
  state.destroy();
}));

test("memory that was transferred is noticed", () => alone(async (context) => {
  const state = new State(context), array = new Float32Array(100);
  state.addTensor("a", array);
  await state.commit();
  structuredClone(array.buffer, { transfer: [array.buffer] });
  await assert.rejects(() => state.commit(), /key 'a' has lost its memory .* expected 400 bytes/);
  state.destroy();
}));

test("another array takes a key's place", () => alone(async (context) => {
  const state = new State(context), first = new Float32Array([1, 2]), next = new Float32Array(2);
  state.addTensor("a", first).addTensor("empty", new Float32Array(0));
  await state.commit();
  state.setData("a", next);
  state.setData("empty", new Float32Array(0));
  first.fill(7);
  await state.restore();
  assert.deepEqual([[...first], [...next]], [[7, 7], [1, 2]]);
  next.fill(3);
  await state.commit();
  next.fill(4);
  await state.restore();
  assert.deepEqual([...next], [3, 3]);
  assert.throws(() => state.setData("a", new Float32Array(3)), /float32\[3\]: expected float32\[2\]/);
  assert.throws(() => state.setData("a", new Int32Array(2)), /int32\[2\]: expected float32\[2\]/);
  assert.throws(() => state.setData("none", next), /none/);
  state.destroy();
}));

test("run: what the function throws comes out", () => alone(async (context) => {
  const state = new State(context);
  let calls = 0;
  await run(state, async () => { calls++; });
  assert.equal(calls, 1);
  await assert.rejects(() => run(state, () => { throw new RangeError("mine"); }), (e) => e instanceof RangeError);
  state.destroy();
}));

test("abort ends what is under way; destroy twice is once", async () => {
  const context = await Context.init();
  context.abort("enough");
  await assert.rejects(() => context.barrier("b"), { code: "HVD_CLOSED" });
  await context.destroy();
  await context.destroy();
  assert.throws(() => context.rank, { code: "HVD_CLOSED" });
});
