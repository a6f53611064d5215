// Express: a handler that runs once for each key.

import { checked } from './options.js';
import { problem } from './problem.js';
import { fingerprinted, named, parsed, read } from './request.js';
import { send } from './response.js';
import { nested } from './running.js';
import { serve } from './serve.js';

const kept = Symbol('stet: the body as it came');

/** For express.json({ verify: keepBody }), if that runs before a protected handler. */
export function keepBody(req, res, body) {
  req[kept] = body;
}

/** Returns a function that protects handlers. */
export function idempotency(options) {
  const o = checked(options);
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a handler is needed: (req, res, client) => …');
    return async function protectedHandler(req, res, next) {
      try {
        const inside = nested(o, req);
        if (inside !== undefined) return send(res, inside);
        const before = res.getHeaders();
        const { operation, refusal } = await named(o, req, req, `${req.method} ${req.route === undefined ? req.path : req.baseUrl + req.route.path}`);
        if (refusal !== undefined) return send(res, refusal);
        const got = await body(o, req);
        if (got.refusal !== undefined) return send(res, got.refusal);
        operation.fingerprint = fingerprinted(o, req, req.originalUrl, got.body);
        await serve({ options: o, operation, req, res, before, handler: (client) => handler(req, res, client) });
      } catch (error) {
        next(error);
      }
    };
  };
}

// body reads the body as it came, and gives the handler rawBody, and body if nothing else has.
async function body(o, req) {
  if (req[kept] !== undefined) return { body: (req.rawBody = req[kept]) };
  if (req.readableDidRead) {
    if (o.sidecar) return {}; // which has compared the requests
    o.log('the request\'s body was read before this handler, so requests cannot be compared; nothing was executed. ' +
      'Use keepBody there, as in express.json({ verify: keepBody }), or register it after this handler.');
    return { refusal: problem('misconfigured', { base: o.problemBase }) };
  }
  const got = await read(o, req, req);
  if (got.refusal !== undefined) return got;
  const { value, refusal } = parsed(o, req, got.body);
  if (refusal !== undefined) return { refusal };
  req.rawBody = got.body;
  req.body = value ?? (got.body.length > 0 ? got.body : undefined);
  return got;
}
