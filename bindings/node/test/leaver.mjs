// Rank 1 ends its process while an operation, an event stream and a poll are under way; rank 0 waits for it
// in vain.
import { Context } from "hvd";

const context = await Context.init();
(async () => { for await (const event of context.events()) void event; })();
if (context.rank === 1) {
  context.barrier("never").catch(() => {});
  setImmediate(() => {
    console.log("left");
    process.exit(3);
  });
} else {
  try {
    await context.barrier("other");
  } catch (error) {
    console.log(`other saw ${error.code}`);
  }
  await context.destroy();
}
