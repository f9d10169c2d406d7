import pg from "pg";
import { Queue, Worker, createPostgresBackend, runMigrations } from "bullmq";
import { batches, fail, tally, versionOf } from "./jobs.mjs";

// open takes a worker's options for its settings.
export async function open({ url, settings }) {
  const connection = { connectionString: url, max: Math.max(10, settings.concurrency ?? 1), idleTimeoutMillis: 0 };

  return {
    version: versionOf("bullmq"),

    async setUp() {
      const client = new pg.Client(url);
      await client.connect();
      await runMigrations(client);
      await client.end();
    },

    async insert({ jobs }) {
      const queue = new Queue("noop", { connection }, createPostgresBackend);
      for (const batch of batches(jobs, 1000, (n) => ({ name: "noop", data: { n } }))) {
        await queue.addBulk(batch);
      }
      await queue.close();
    },

    async burn({ jobs }) {
      const ran = tally(jobs);
      const recorded = tally(jobs); // "completed" comes after the commit
      const handler = async () => void ran.count();
      const worker = new Worker("noop", handler, { connection, autorun: false, ...settings }, createPostgresBackend);
      worker.on("completed", recorded.count).on("error", fail);
      await worker.waitUntilReady();

      const began = performance.now();
      worker.run().catch(fail);
      await recorded.full;
      const seconds = (performance.now() - began) / 1000;
      await worker.close();
      return { seconds, ran: ran.n };
    },
  };
}
