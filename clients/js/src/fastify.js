// Fastify: a handler that runs once for each key.

import { Readable } from 'node:stream';
import { checked } from './options.js';
import { fingerprinted, named, read } from './request.js';
import { send } from './response.js';
import { serve } from './serve.js';

/** Returns a function that protects handlers: it makes the options of a route. */
export function idempotency(options) {
  const o = checked(options);
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a handler is needed: async (request, reply, client) => …');
    const operations = new WeakMap();
    return {
      async preParsing(request, reply, payload) {
        const { operation, refusal } = await named(o, request, request.raw, `${request.method} ${request.routeOptions.url ?? request.url}`);
        const got = refusal === undefined ? await read(o, request.raw, payload) : { refusal };
        if (got.refusal !== undefined) {
          send(take(reply, reply.getHeaders()), got.refusal);
          return reply;
        }
        operation.fingerprint = fingerprinted(o, request.raw, request.originalUrl, got.body);
        operations.set(request, operation);
        return got.body.length > 0 ? Readable.from([got.body], { objectMode: false }) : Readable.from([]);
      },
      async handler(request, reply) {
        const operation = operations.get(request);
        if (operation === undefined) throw new Error('stet: once() makes the options of a route; give them to the route whole: app.post(path, once(handler))');
        const before = reply.getHeaders(); // the raw response's too
        const run = async (client) => {
          const value = await handler.call(this, request, reply, client);
          if (value !== undefined && value !== reply && !reply.sent) reply.send(value);
        };
        try {
          await serve({ options: o, operation, req: request.raw, res: reply.raw, before, handler: run, answering: () => take(reply, before) });
        } catch (error) {
          for (const name of Object.keys(reply.getHeaders())) if (before[name] === undefined) reply.removeHeader(name);
          throw error;
        }
        return reply;
      },
    };
  };
}

// take takes the response from Fastify, with the header that others have set: stet answers.
function take(reply, headers) {
  reply.hijack();
  for (const [name, value] of Object.entries(headers)) reply.raw.setHeader(name, value);
  return reply.raw;
}
