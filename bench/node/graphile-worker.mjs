import pg from "pg";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { batches, fail, tally, versionOf } from "./jobs.mjs";

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

// open takes the worker part of a preset for its settings.
export async function open({ url, settings }) {
  const max = settings.maxPoolSize ?? 10;
  const pgPool = new pg.Pool({ connectionString: url, max, idleTimeoutMillis: 0 });
  pgPool.on("error", fail).on("connect", (client) => client.on("error", fail));
  const utils = await makeWorkerUtils({ pgPool, logger });

  async function isEmpty() {
    const { rows } = await pgPool.query("select not exists (select from graphile_worker.jobs) as yes");
    return rows[0].yes;
  }

  return {
    version: versionOf("graphile-worker"),

    setUp: () => utils.migrate(),

    async insert({ jobs }) {
      for (const batch of batches(jobs, 5000, (n) => ({ identifier: "noop", payload: { n } }))) {
        await utils.addJobs(batch);
      }
    },

    async burn({ jobs }) {
      const clients = await Promise.all(Array.from({ length: max }, () => pgPool.connect()));
      clients.forEach((client) => client.release());

      const ran = tally(jobs);
      const began = performance.now();
      const runner = await run({
        pgPool, logger, noHandleSignals: true, crontab: "", preset: { worker: settings },
        taskList: { noop: () => void ran.count() },
      });
      runner.promise.catch(fail);
      await ran.full;
      while (!(await isEmpty()));
      const seconds = (performance.now() - began) / 1000;
      await runner.stop();
      return { seconds, ran: ran.n };
    },
  };
}
