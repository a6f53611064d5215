// Hono: middleware that lets the handlers after it run once for each key.

import { exchange } from './exchange.js';
import { checked } from './options.js';
import { fingerprinted, named } from './request.js';
import { nested } from './running.js';
import { fieldsOf, readBody, released, requestOf, responseOf, stored, targetOf } from './web.js';

/** Returns middleware. Handlers get the client by c.get('client'). */
export function idempotency(options) {
  const o = checked(options);
  return async function once(c, next) {
    const outer = new Headers(c.res.headers);
    const before = fieldsOf(outer);
    const inside = nested(o, c);
    if (inside !== undefined) return responseOf(inside, before);
    const incoming = c.env?.incoming; // of @hono/node-server
    const req = incoming?.headersDistinct === undefined ? requestOf(c.req.raw) : incoming;
    const { operation, refusal } = await named(o, c, req, `${c.req.method} ${c.req.routePath ?? c.req.path}`);
    const got = refusal === undefined ? await readBody(o, c.req.raw) : { refusal };
    if (got.refusal !== undefined) return responseOf(got.refusal, before);
    if (got.body.length > 0) c.req.raw = new Request(c.req.url, { method: c.req.method, headers: c.req.raw.headers, body: got.body, signal: c.req.raw.signal });
    operation.fingerprint = fingerprinted(o, req, incoming?.url ?? targetOf(c.req.raw), got.body);
    const handler = async (client) => {
      c.set('client', client);
      await next();
      const error = c.error;
      return { ...await stored(c.res, o.sidecar ? {} : before), thrown: error !== undefined };
    };
    const result = await exchange({ options: o, operation, req, call: c, handler }).catch((error) => {
      c.res = undefined; // or its fields would be in the next response
      c.res = new Response(null, { headers: outer });
      throw error;
    });
    const { answer, response, expires } = result;
    c.res = undefined;
    c.res = answer === undefined ? released(response, expires) : responseOf(answer, before);
    return undefined;
  };
}
