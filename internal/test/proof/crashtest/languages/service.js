// Payments, protected by the package @stet-go/stet, in a process that dies where DIE says: "point:visit".

import http from 'node:http';
import express from 'express';
import fastify from 'fastify';
import pg from 'pg';
import { idempotency as onExpress } from '@stet-go/stet/express';
import { idempotency as onFastify } from '@stet-go/stet/fastify';

const { DATABASE_URL, FLAVOUR, PORT, SIDECAR, DEFECT, STET_MODE, DIE = '' } = process.env; // STET_MODE: that of the package
const insert = "INSERT INTO ledger (key, by) VALUES ($1, 'node') RETURNING id";
const [point, visit] = DIE.split(':');
let left = Number(visit);

function at(here) {
  if (here === point && --left <= 0) {
    process.kill(process.pid, 'SIGKILL');
    for (;;); // until it has
  }
}

const bare = new pg.Pool({ connectionString: DATABASE_URL, max: 10 });
bare.on('error', () => {});

const pool = {
  async connect() {
    const client = await bare.connect();
    if (client.mortal) return client;
    client.mortal = true;
    const query = client.query.bind(client);
    client.query = (what, ...more) => {
      if (!what?.statements?.some(({ text }) => text === 'COMMIT')) return query(what, ...more);
      at('settle.before');
      const sent = query(what, ...more);
      at('settle.after'); // one trip settles and commits: it is sent, and not answered
      at('commit.before');
      what.done.then(() => at('commit.after'), () => {});
      return sent;
    };
    return client;
  },
};

const options = (scope) => ({ pool, log: () => {}, ...(SIDECAR ? { sidecar: true } : { scope, ...(STET_MODE && { mode: STET_MODE }) }) });

async function pay(key, client) {
  at('begun');
  const { rows } = await (DEFECT === 'apart' ? bare : client).query(insert, [key]);
  at('written');
  return `{"payment": ${rows[0].id}}`;
}

const apps = {
  async express() {
    const app = express();
    app.post('/payments', onExpress(options((req) => req.get('X-Account')))(async (req, res, client) => {
      const body = await pay(req.get('Idempotency-Key'), client);
      res.status(201).type('application/json').end(body);
    }));
    return (serve) => serve(app).listen(Number(PORT), '127.0.0.1', ready);
  },
  async fastify() {
    return async (serve) => {
      const app = fastify({ serverFactory: serve });
      app.post('/payments', onFastify(options((request) => request.headers['x-account']))(async (request, reply, client) => {
        reply.code(201).type('application/json').send(await pay(request.headers['idempotency-key'], client));
      }));
      await app.listen({ port: Number(PORT), host: '127.0.0.1' });
      ready();
    };
  },
};

const ready = () => console.log(`listening on http://127.0.0.1:${PORT}`);

// A write to the response here is sent: before, the package holds a response back.
function mortal(handler) {
  return http.createServer((req, res) => {
    at('received');
    const { writeHead, end } = res;
    res.writeHead = (...args) => {
      at('answer.before');
      return writeHead.apply(res, args);
    };
    res.end = (...args) => {
      const result = end.apply(res, args);
      res.once('finish', () => at('answer.after'));
      return result;
    };
    handler(req, res);
  });
}

(await apps[FLAVOUR]())(mortal);
