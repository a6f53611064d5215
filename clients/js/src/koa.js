// Koa: a handler that runs once for each key.

import { collected, exchange, heldBack } from './exchange.js';
import { checked } from './options.js';
import { problem } from './problem.js';
import { fingerprinted, named, parsed, read } from './request.js';
import { Capture, mute, send } from './response.js';
import { nested } from './running.js';
import { refusal } from './serve.js';

/** Returns a function that protects handlers. */
export function idempotency(options) {
  const o = checked(options);
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a handler is needed: async (ctx, client) => …');
    return async function protectedHandler(ctx) {
      const { req, res } = ctx;
      const before = { ...res.getHeaders() };
      const inside = nested(o, req);
      if (inside !== undefined) return answer(ctx, inside, before);
      const { operation, refusal: unnamed } = await named(o, ctx, req, `${ctx.method} ${ctx.routerPath ?? ctx._matchedRoute ?? ctx.path}`);
      const got = unnamed === undefined ? await body(o, ctx) : { refusal: unnamed };
      if (got.refusal !== undefined) return answer(ctx, got.refusal, before);
      operation.fingerprint = fingerprinted(o, req, ctx.originalUrl, got.body);
      const base = o.sidecar ? {} : before;
      let thrown;
      const guard = guarded(res);
      const run = async (client) => {
        await (async () => handler(ctx, client))().catch((error) => { throw thrown = error; });
        if (ctx.respond === false || ctx.headerSent || guard.written) throw new Error('stet: a protected handler must write its response to ctx.body');
        return responseOf(ctx, base);
      };
      let result;
      try {
        result = await exchange({ options: o, operation, req, call: req, handler: run });
      } catch (error) {
        guard.remove();
        restore(res, before);
        if (error === thrown) refusal({ options: o, operation, req }, new Capture(res, base), (what) => send(res, what));
        throw error;
      }
      guard.remove();
      if (result.late) { // the handler could still change the response
        ctx.respond = false;
        restore(res, before);
        send(res, result.answer);
        return mute(res);
      }
      if (result.answer !== undefined) return answer(ctx, result.answer, before);
      release(ctx, result);
    };
  };
}

// body is that of the request, which a parser before the handler may have read.
async function body(o, ctx) {
  const { request, req } = ctx;
  if (request.rawBody !== undefined) return { body: Buffer.from(request.rawBody) };
  if (req.readableDidRead) {
    if (o.sidecar) return {}; // which has compared the requests
    o.log('the request\'s body was read before this handler, and ctx.request.rawBody is not there, so requests cannot be compared; nothing was executed. Parse the body after this handler, or by koa-bodyparser.');
    return { refusal: problem('misconfigured', { base: o.problemBase }) };
  }
  const got = await read(o, req, req);
  if (got.refusal !== undefined) return got;
  const { value, refusal: invalid } = parsed(o, req, got.body);
  if (invalid !== undefined) return { refusal: invalid };
  request.rawBody = got.body;
  request.body = value ?? (got.body.length > 0 ? got.body : undefined);
  return got;
}

// responseOf is the response that Koa would send now, in its stored form.
async function responseOf(ctx, before) {
  const { response } = ctx;
  let bytes = { body: Buffer.alloc(0) };
  if (![204, 205, 304].includes(ctx.status)) {
    const value = ctx.body;
    if (value === null || value === undefined) {
      if (!response._explicitNullBody) [bytes.body, ctx.type] = [Buffer.from(ctx.message || String(ctx.status)), 'text'];
    } else if (typeof value === 'string' || Buffer.isBuffer(value)) {
      bytes.body = Buffer.from(value);
    } else if (value instanceof Blob) {
      bytes = await collected(value.stream());
    } else if (value instanceof Response) {
      bytes = await collected(value.body);
    } else if (typeof value.pipe === 'function' || value instanceof ReadableStream) {
      bytes = await collected(value);
    } else {
      bytes.body = Buffer.from(JSON.stringify(value));
    }
  }
  const header = { ...ctx.res.getHeaders() };
  delete header['idempotency-expires']; // of another operation
  return { ...heldBack({ status: ctx.status, header, ...bytes }, before), message: ctx.message };
}

// release sets the response that was held back. Changes since then have no effect.
function release(ctx, { response: { status, message, header, body }, expires }) {
  restore(ctx.res, header);
  ctx.status = status;
  ctx.message = message;
  if (![204, 205, 304].includes(status)) ctx.body = body;
  if (header['content-type'] === undefined) ctx.remove('Content-Type'); // ctx.body has set one
  if (expires !== undefined) ctx.set('Idempotency-Expires', expires);
}

const writes = ['write', 'end', 'writeHead', 'flushHeaders'];

// guarded ignores writes to Node's response, which would be sent before the commit. They do not throw: a stream that is piped
// there would end the process.
function guarded(res) {
  const were = writes.map((name) => [name, Object.getOwnPropertyDescriptor(res, name)]);
  const guard = { written: false, remove() {
    for (const [name, was] of were) {
      delete res[name];
      if (was !== undefined) Object.defineProperty(res, name, was);
    }
  } };
  for (const name of writes) Object.defineProperty(res, name, { configurable: true, writable: true, value: () => { guard.written = true; return name === 'write' || res; } });
  return guard;
}

// answer sets stet's answer, with the fields that others had set before.
function answer(ctx, { status, headers, body: bytes }, before) {
  restore(ctx.res, before);
  ctx.status = status;
  if (![204, 205, 304].includes(status)) ctx.body = bytes;
  if (headers['Content-Type'] === undefined) ctx.remove('Content-Type');
  for (const [name, value] of Object.entries(headers)) {
    if (Array.isArray(value) && value.length === 0) ctx.remove(name);
    else ctx.set(name, value);
  }
}

function restore(res, before) {
  for (const name of res.getHeaderNames()) if (before[name] === undefined) res.removeHeader(name);
  for (const [name, value] of Object.entries(before)) res.setHeader(name, value);
}
