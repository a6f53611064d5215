// A payments service for the tests: on each framework, in this process or in one of its own.

import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { services } from './frameworks.js';

/** The frameworks that are tested in this run. */
export const frameworks = (process.env.STET_FRAMEWORKS ?? 'express,fastify').split(',');

/** Whether handlers return Responses of the Web, whose header joins the values of a field. */
export const ofWeb = (framework) => ['hono', 'next'].includes(framework);

/** Whether the framework's error handler answers if a commit fails: Nest has written its response by then. */
export const answersLate = (framework) => !framework.startsWith('nest');

/** The mode of the services: the same tests run in each. */
export const mode = process.env.STET_MODE ?? 'functions';

/** Reports whether a query, or a batch of queries, has a COMMIT. */
export const commits = (query) => query === 'COMMIT' || (query?.statements?.some(({ text }) => text === 'COMMIT') ?? false);

/**
 * Starts a service with the handler at POST /payments, and returns its URL. The handler gets
 * { body, raw, key, client, reply }.
 */
export async function start(framework, handler, options = {}) {
  const logged = [];
  const pool = new pg.Pool({ connectionString: options.url ?? process.env.STET_DATABASE, max: 10 });
  pool.on('error', () => {});
  const { url: _, twice, ...rest } = options;
  const scope = (get) => (rest.sidecar ? {} : { mode, scope: (request) => get(request, 'x-account') });
  const of = (get) => ({ pool: mortal(pool), ...scope(get), log: (...line) => logged.push(line.join(' ')), ...rest });
  const serving = await services[framework](handler, of, twice);
  return { ...serving, logged, pool, 
    stop: async () => {
      await serving.close();
      for (let n = 0; pool.totalCount > pool.idleCount && n < 200; n++) await sleep(5); // a response does not wait for ROLLBACK
      if (pool.totalCount > pool.idleCount) throw new Error('a connection was not released');
      await pool.end();
    },
  };
}

/** Charges, and answers with the number of the charge. */
export async function charge({ body, key, client, reply }) {
  const { rows } = await client.query('INSERT INTO charges (key, amount) VALUES ($1, $2) RETURNING id', [key, body.amount]);
  await reply(201, { Location: `/payments/${rows[0].id}`, 'Content-Type': 'application/json' }, JSON.stringify({ payment: rows[0].id }));
}

// mortal is a pool whose process dies at the first COMMIT: by STET_DIES before it or after it.
function mortal(pool) {
  const dies = process.env.STET_DIES;
  if (!dies) return pool;
  return {
    async connect() {
      const client = await pool.connect();
      const query = client.query.bind(client);
      client.query = (what, ...more) => {
        if (!commits(what)) return query(what, ...more);
        const kill = () => process.kill(process.pid, 'SIGKILL');
        if (dies === 'before') return kill();
        const sent = query(what, ...more);
        what.done.then(kill);
        return sent;
      };
      return client;
    },
  };
}

// As a process: it says where it listens. With STET_HANG it charges, says so, and waits to be killed;
// with STET_WAIT it charges, says so, and waits for the lock of that number.
if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { url } = await start(process.argv[2], async (request) => {
    if (process.env.STET_HANG) {
      await charge({ ...request, reply: () => {} });
      process.send('charged');
      await new Promise(() => {});
    }
    await charge({ ...request, reply: async (...args) => {
      if (process.env.STET_WAIT) {
        process.send('charged');
        await request.client.query('SELECT pg_advisory_xact_lock($1)', [process.env.STET_WAIT]);
      }
      request.reply(...args);
    } });
  }, process.env.STET_SIDECAR ? { sidecar: true, log: (line) => process.send({ line }) } : {});
  process.on('disconnect', () => process.exit());
  process.send({ url });
}
