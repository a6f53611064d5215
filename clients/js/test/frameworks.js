// The payments service of the tests on each framework. Each function takes a handler, and options(get), where get(request, name) is a header field.
// With twice, the handler is protected twice.

import { once } from 'node:events';
import { Readable } from 'node:stream';

const byNode = (req, name) => req.headers[name];
const errorOf = (error) => ({ error: error.message });

async function express(name, handler, options, twice) {
  const [{ default: make }, { idempotency }] = await Promise.all([import(name), import('@stet-go/stet/express')]);
  const app = make();
  app.use((req, res, next) => { res.set('X-Outer', 'outer'); next(); });
  const once = idempotency(options(byNode));
  const protectedHandler = once((req, res, client) => handler({
    body: req.body, raw: req.rawBody, key: req.get('Idempotency-Key'), client, native: { req, res },
    reply: (status, headers, body) => { res.status(status).set(headers); res.end(body); },
  }));
  app.post('/payments', twice ? once((req, res) => protectedHandler(req, res, (error) => { throw error; })) : protectedHandler);
  app.use((error, req, res, next) => { res.status(error.status ?? 500).set('X-Error', 'app').json(errorOf(error)); void next; });
  return listening(app.listen(0, '127.0.0.1'));
}

async function listening(server) {
  if (!server.listening) await once(server, 'listening');
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => new Promise((resolve) => { server.close(resolve); server.closeAllConnections(); }) };
}

async function fastify(handler, options) {
  const [{ default: make }, { idempotency }] = await Promise.all([import('fastify'), import('@stet-go/stet/fastify')]);
  const app = make();
  app.addHook('onRequest', async (request, reply) => { reply.header('X-Outer', 'outer'); });
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
  app.post('/payments', idempotency(options(byNode))((request, reply, client) => handler({
    body: request.body, key: request.headers['idempotency-key'], client, native: { request, reply, stream: (source) => reply.send(source) },
    reply: (status, headers, body) => { reply.code(status).headers(headers).send(typeof body === 'string' ? Buffer.from(body) : body); },
  })));
  app.setErrorHandler((error, request, reply) => { reply.code(error.status ?? 500).header('X-Error', 'app').send(errorOf(error)); });
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  return { url, close: () => { app.server.closeAllConnections(); return app.close(); } };
}

async function koa(handler, options, twice) {
  const [{ default: Koa }, { default: Router }, { idempotency }] = await Promise.all([import('koa'), import('@koa/router'), import('@stet-go/stet/koa')]);
  const app = new Koa(), router = new Router();
  app.silent = true;
  app.use(async (ctx, next) => {
    ctx.set('X-Outer', 'outer');
    try {
      await next();
    } catch (error) {
      ctx.status = error.status ?? 500;
      ctx.set('X-Error', 'app');
      ctx.body = errorOf(error);
    }
  });
  const protect = idempotency(options((ctx, name) => ctx.get(name)));
  const protectedHandler = protect((ctx, client) => handler({
    body: ctx.request.body, raw: ctx.request.rawBody, key: ctx.get('Idempotency-Key'), client, native: { stream: (source) => { ctx.body = source; } },
    reply: (status, headers, body) => { ctx.status = status; ctx.set(headers); ctx.body = body ?? null; },
  }));
  router.post('/payments', twice ? protect((ctx) => protectedHandler(ctx)) : protectedHandler);
  app.use(router.routes());
  return listening(app.listen(0, '127.0.0.1'));
}

// web calls a handler that makes a Response of the Web.
async function web(handler, request, client) {
  let made;
  await handler({
    body: JSON.parse(await request.text() || 'null'), key: request.header('Idempotency-Key'), client,
    native: { stream: (source) => { made = new Response(Readable.toWeb(source)); } },
    reply: (status, headers, body) => {
      const fields = new Headers();
      for (const [name, values] of Object.entries(headers)) for (const value of [values].flat()) fields.append(name, value);
      made = new Response(body === undefined || status === 204 ? null : body, { status, headers: fields });
    },
  });
  return made;
}

async function served(fetch) {
  const { serve } = await import('@hono/node-server');
  return listening(serve({ fetch, port: 0, hostname: '127.0.0.1', overrideGlobalObjects: false }));
}

async function hono(handler, options, twice) {
  const [{ Hono }, { idempotency }] = await Promise.all([import('hono'), import('@stet-go/stet/hono')]);
  const app = new Hono();
  app.use(async (c, next) => { c.res.headers.set('X-Outer', 'outer'); await next(); }); // as hono/cors does
  const protect = idempotency(options((c, name) => c.req.header(name)));
  app.post('/payments', ...(twice ? [protect, protect] : [protect]), (c) => web(handler, c.req, c.get('client')));
  app.onError((error, c) => c.json(errorOf(error), error.status ?? 500, { 'X-Error': 'app' }));
  return served(app.fetch);
}

async function next(handler, options, twice) {
  const { idempotency } = await import('@stet-go/stet/next');
  const protect = idempotency(options((request, name) => request.headers.get(name)));
  const protectedHandler = protect((request, client) =>
    web(handler, { text: () => request.text(), header: (name) => request.headers.get(name) }, client));
  const POST = twice ? protect((request) => protectedHandler(request)) : protectedHandler;
  return served((request) => POST(request, {}).catch((error) => Response.json(errorOf(error), { status: error.status ?? 500, headers: { 'X-Error': 'app' } })));
}

async function nest(platform, handler, options, twice) {
  await import('reflect-metadata');
  const [{ Catch, Controller, Module, Post, Req, Res, StreamableFile, UseInterceptors }, { NestFactory }, { Client, idempotency }] =
    await Promise.all([import('@nestjs/common'), import('@nestjs/core'), import('@stet-go/stet/nest')]);
  class Payments {
    async pay(req, res, client) {
      let made;
      await handler({
        body: req.body, raw: req.rawBody, key: req.headers['idempotency-key'], client, native: { stream: (source) => { made = new StreamableFile(source); } },
        reply: (status, headers, body) => {
          res.status(status);
          for (const [name, value] of Object.entries(headers)) res.header(name, value);
          made = Buffer.isBuffer(body) ? new StreamableFile(body) : body;
        },
      });
      return made;
    }
  }
  class Errors {
    catch(error, host) { host.switchToHttp().getResponse().status(error.status ?? 500).header('X-Error', 'app').send(errorOf(error)); }
  }
  class App {}
  const method = (...decorators) => decorators.forEach((decorate) => decorate(Payments.prototype, 'pay', Object.getOwnPropertyDescriptor(Payments.prototype, 'pay')));
  [Req(), Res({ passthrough: true }), Client()].forEach((decorate, i) => decorate(Payments.prototype, 'pay', i));
  const protect = idempotency(options(byNode));
  method(Post('payments'), UseInterceptors(...(twice ? [protect, protect] : [protect])));
  Controller()(Payments);
  Catch()(Errors);
  Module({ controllers: [Payments] })(App);
  const Adapter = platform === 'express' ? (await import('@nestjs/platform-express')).ExpressAdapter : (await import('@nestjs/platform-fastify')).FastifyAdapter;
  const app = await NestFactory.create(App, new Adapter(), { logger: false, rawBody: true });
  app.useGlobalFilters(new Errors());
  if (platform === 'express') app.use((req, res, next) => { res.setHeader('X-Outer', 'outer'); next(); });
  else app.getHttpAdapter().getInstance().addHook('onRequest', async (request, reply) => { reply.header('X-Outer', 'outer'); });
  await app.listen(0, '127.0.0.1');
  return { url: (await app.getUrl()).replace('[::1]', '127.0.0.1'), close: () => { app.getHttpServer().closeAllConnections(); return app.close(); } };
}

/** The services, by the names of their frameworks. */
export const services = {
  express: (...args) => express('express', ...args), express4: (...args) => express('express4', ...args), fastify, koa, hono, next,
  nest: (...args) => nest('express', ...args), 'nest-fastify': (...args) => nest('fastify', ...args),
};
