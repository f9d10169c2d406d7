// One queue behind a pipe: a line of stdin is a command, a line of stdout its answer. What fails ends this process with
// a stack on stderr. The end of stdin ends it too: nobody is there any more to answer to.
import { createInterface } from "node:readline";

console.log = console.info = console.error; // stdout has answers only

const { open } = await import(`./${process.argv[2]}.mjs`);
let queue = {
  async open(args) {
    queue = await open(args);
    return { version: `${queue.version}, node ${process.versions.node}` };
  },
};

const lines = createInterface({ input: process.stdin }).on("close", () => process.exit());
for await (const line of lines) {
  const { command, ...args } = JSON.parse(line);
  const answer = await queue[command](args);
  process.stdout.write(JSON.stringify(answer ?? {}) + "\n");
}
