// Jobs of real processes under hvdrun: HVD_TEST_HVDRUN names it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const hvdrun = process.env.HVD_TEST_HVDRUN ?? "hvdrun";
const patience = 1000 * 120 * Number(process.env.HVD_TEST_PATIENCE ?? 1);

/** Runs a job; `watch(line, kill)` sees each line of it. Resolves to { code, output }. */
function job(ranks, script, watch = () => {}, environment = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(hvdrun, ["-np", `${ranks}`, "--min-np", "1", "-H", `localhost:${ranks}`, "--set", "restart=false", "--",
      process.execPath, fileURLToPath(new URL(script, import.meta.url))], { env: { ...process.env, ...environment } });
    let output = "", rest = "";
    const late = setTimeout(() => { child.kill(); reject(new Error(`not done in time:\n${output}`)); }, patience);
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (data) => {
        output += data;
        const lines = (rest + data).split("\n");
        rest = lines.pop();
        lines.forEach((line) => watch(line));
      });
    }
    child.on("error", reject).on("close", (code) => { clearTimeout(late); resolve({ code, output }); });
  });
}

test("two workers agree, and their event loops go on meanwhile", async () => {
  const { code, output } = await job(2, "./worker.mjs");
  assert.equal(code, 0, output);
  const done = output.match(/done rank \d of 2: y = 2\.00x \+ 1\.00 recoveries 0 cause 0 ticks true/g);
  assert.equal(done?.length, 2, output);
});

test("a worker is killed: the others go on from the last commit", async () => {
  let victim, killed = false;
  const { code, output } = await job(3, "./worker.mjs", (line) => {
    const start = line.match(/start pid (\d+) rank 2 of 3 call 1/);
    if (start) victim = Number(start[1]);
    if (/step 900/.test(line) && victim && !killed) {
      killed = true;
      process.kill(victim, "SIGKILL");
    }
  }, { HOLD: "1" });
  assert.ok(killed, output);
  assert.equal(code, 0, output);
  const done = output.match(/done rank \d of 2: y = 2\.00x \+ 1\.00 recoveries 1 cause 1 ticks true lost true/g);
  assert.equal(done?.length, 2, output);
});

test("a worker whose process ends while it waits is gone at once", async () => {
  const { output } = await job(2, "./leaver.mjs");
  assert.match(output, /left/);
  assert.match(output, /other saw HVD_PEER_LOST/);
});
