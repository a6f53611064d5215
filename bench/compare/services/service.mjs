// A service in Express or NestJS, protected in the way of the variable WAY.

import express from 'express';
import { lease, pay, pool, send } from './pay.mjs';

const paths = ['/payments', '/refunds'];
const of = (req) => [req.get('idempotency-key'), req.get('x-account'), req.body];
const listen = (app) => { const server = app.listen(0, '127.0.0.1', () => console.log(`ready 127.0.0.1:${server.address().port}`)); };
const failed = (error, req, res, next) => { if (res.headersSent) next(error); else res.status(500).json({ error: error.message }); };

async function redisClient() {
  const { createClient } = await import('redis');
  const client = createClient({ url: process.env.REDIS_URL });
  client.on('error', () => {});
  return client.connect();
}

const ways = {
  async stet_express() {
    const { idempotency } = await import('@stet-go/stet/express');
    const once = idempotency({ pool, scope: (req) => req.get('x-account'), log: () => {} });
    const app = express();
    app.post(paths, once(async (req, res, client) => {
      const execute = async (sql, values) => (await client.query(sql, values)).rows[0];
      send(res, await pay(req.get('idempotency-key'), req.get('x-account'), req.body, execute));
    }));
    listen(app.use(failed));
  },

  async express_idempotency() {
    const { getSharedIdempotencyService, idempotency } = (await import('express-idempotency')).default;
    const app = express();
    app.use(express.json({ limit: '5mb' }));
    app.post(paths, idempotency(), async (req, res) => {
      const service = getSharedIdempotencyService();
      if (service.isHit(req)) return;
      try {
        send(res, await pay(...of(req)));
      } catch (error) {
        await service.reportError(req);
        throw error;
      }
    });
    listen(app.use(failed));
  },

  async node_idempotency() {
    const { Idempotency } = (await import('@node-idempotency/core')).default;
    const { RedisStorageAdapter } = (await import('@node-idempotency/storage-adapter-redis')).default;
    const storage = new RedisStorageAdapter({ url: process.env.REDIS_URL });
    await storage.connect();
    const idempotency = new Idempotency(storage, { cacheTTLMS: 86_400_000, enforceIdempotency: true });
    const status = { REQUEST_IN_PROGRESS: 409, IDEMPOTENCY_FINGERPRINT_MISSMATCH: 422, IDEMPOTENCY_KEY_MISSING: 400 };
    const app = express();
    app.use(express.json({ limit: '5mb' }));
    app.post(paths, async (req, res) => {
      // The account is a part of the key, as the library has no scopes.
      const request = { method: req.method, headers: { 'idempotency-key': `${req.get('x-account')} ${req.get('idempotency-key')}` }, body: req.body, path: req.path };
      let known;
      try {
        known = await idempotency.onRequest(request);
      } catch (error) {
        return res.status(status[error.code] ?? 500).json({ error: error.message });
      }
      if (known?.error) throw new Error(known.error.message);
      if (known) return send(res, { ...known.additional, body: known.body });
      try {
        const { body, ...additional } = await pay(...of(req));
        await idempotency.onResponse(request, { body, additional });
        return send(res, { body, ...additional });
      } catch (error) {
        await idempotency.onResponse(request, { error: { message: error.message } });
        throw error;
      }
    });
    listen(app.use(failed));
  },

  async node_idempotency_nest() {
    await import('reflect-metadata');
    const { Controller, HttpException, Module, Post, Req, Res } = (await import('@nestjs/common')).default;
    const { NestFactory } = (await import('@nestjs/core')).default;
    const { Idempotent, NodeIdempotencyModule } = (await import('@node-idempotency/nestjs')).default;
    class Payments {
      async pay(req, res) {
        const { status, headers, body } = await pay(...of(req));
        if (status >= 400) throw new HttpException(body, status);
        res.status(status).set(headers);
        return body;
      }
    }
    const decorate = (decorators, target, name) => { for (const d of decorators.reverse()) d(target, name, name && Object.getOwnPropertyDescriptor(target, name)); };
    Req()(Payments.prototype, 'pay', 0);
    Res({ passthrough: true })(Payments.prototype, 'pay', 1);
    decorate([Post(paths), Idempotent({ enforceIdempotency: true })], Payments.prototype, 'pay');
    Controller()(Payments);
    class App {}
    Module({ imports: [NodeIdempotencyModule.forRootAsync({ storage: { adapter: 'redis', options: { url: process.env.REDIS_URL } }, cacheTTLMS: 86_400_000 })], controllers: [Payments] })(App);
    const app = await NestFactory.create(App, { logger: false });
    await app.listen(0, '127.0.0.1');
    console.log(`ready 127.0.0.1:${app.getHttpServer().address().port}`);
  },

  async powertools_node() {
    const { IdempotencyConfig, makeIdempotent } = await import('@aws-lambda-powertools/idempotency');
    const { CachePersistenceLayer } = await import('@aws-lambda-powertools/idempotency/cache');
    const config = new IdempotencyConfig({ eventKeyJmesPath: '[path, account, key]' });
    config.registerLambdaContext({ getRemainingTimeInMillis: () => lease * 1000 }); // as Lambda's, whose time ends with the lease
    const run = makeIdempotent(async ({ key, account, request }) => {
      const { body, ...head } = await pay(key, account, request);
      return { ...head, body: Buffer.isBuffer(body) ? { bytes: body.toString('base64') } : body };
    }, { persistenceStore: new CachePersistenceLayer({ client: await redisClient() }), config });
    const app = express();
    app.use(express.json({ limit: '5mb' }));
    app.post(paths, async (req, res) => {
      const [key, account, request] = of(req);
      try {
        const { body, ...head } = await run({ path: req.path, key, account, request });
        send(res, { ...head, body: body?.bytes ? Buffer.from(body.bytes, 'base64') : body });
      } catch (error) {
        const status = { IdempotencyAlreadyInProgressError: 409, IdempotencyValidationError: 422 }[error.name];
        if (status === undefined) throw error;
        res.status(status).json({ error: error.message });
      }
    });
    listen(app.use(failed));
  },
};

process.stdin.on('end', () => process.exit()).resume(); // it ends with its parent
await ways[process.env.WAY]();
