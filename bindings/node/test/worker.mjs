// A worker of jobs.test.mjs: fits y = 2x + 1, tells where it is, and lives through the loss of another.
import { Context, State, run } from "hvd";

const context = await Context.init();
const weights = new Float32Array(2), gradient = new Float32Array(2), step = new BigInt64Array(1);
const state = new State(context).addTensor("weights", weights).addValue("step", step);
const seen = [];
const listening = (async () => {
  for await (const event of context.events()) seen.push(event.kind);
})();
let ticks = 0; // the event loop must go on while operations wait
const timer = setInterval(() => ticks++, 1);
const say = (line) => process.stdout.write(`${line}\n`);

let calls = 0;
await run(state, async () => {
  say(`start pid ${process.pid} rank ${context.rank} of ${context.size} call ${++calls}`);
  while (step[0] < 3000n) {
    const x = (Number(step[0]) * context.size + context.rank) % 17 / 17;
    const wrong = weights[0] * x + weights[1] - (2 * x + 1);
    gradient.set([wrong * x, wrong]);
    await context.allreduce("gradient", gradient, { op: "average" });
    weights.forEach((_, i) => { weights[i] -= 0.5 * gradient[i]; });
    step[0]++;
    if (step[0] % 10n === 0n) await state.commit();
    if (step[0] % 100n === 0n && context.rank === 0) say(`step ${step[0]}`);
    // Held until the test has killed somebody and the job has come through it.
    if (process.env.HOLD && step[0] === 1000n && calls === 1) {
      for (let i = 0; ; i++) await context.barrier(`hold.${i}`);
    }
  }
});
clearInterval(timer);
const [recovery] = context.recoveries;
say(`done rank ${context.rank} of ${context.size}: y = ${weights[0].toFixed(2)}x + ${weights[1].toFixed(2)} ` +
    `recoveries ${context.recoveries.length} cause ${recovery?.cause ?? 0} ticks ${ticks > 0} lost ${seen.includes("peerLost")}`);
state.destroy();
await context.shutdown();
await listening;
await context.destroy();
