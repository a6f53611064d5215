// Next.js, and other servers whose handlers take a Request and return a Response: a handler that runs once for each key.

import { exchange } from './exchange.js';
import { checked } from './options.js';
import { fingerprinted, named } from './request.js';
import { nested } from './running.js';
import { readBody, released, requestOf, responseOf, stored, targetOf } from './web.js';

/** Returns a function that protects handlers: once(async (request, client, context) => Response). */
export function idempotency(options) {
  const o = checked(options);
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a handler is needed: async (request, client, context) => Response');
    return async function protectedHandler(request, context) {
      const inside = nested(o, request);
      if (inside !== undefined) return responseOf(inside);
      const req = requestOf(request);
      const target = targetOf(request);
      const { operation, refusal } = await named(o, request, req, `${request.method} ${target.replace(/\?.*/s, '')}`);
      const got = refusal === undefined ? await readBody(o, request.bodyUsed ? request : request.clone()) : { refusal };
      if (got.refusal !== undefined) return responseOf(got.refusal);
      operation.fingerprint = fingerprinted(o, req, target, got.body);
      const run = async (client) => {
        const response = await handler(request, client, context);
        if (typeof response?.arrayBuffer !== 'function') throw new TypeError('stet: the handler must return a Response');
        return stored(response, {});
      };
      const { answer, response, expires } = await exchange({ options: o, operation, req, call: request, handler: run });
      return answer === undefined ? released(response, expires) : responseOf(answer);
    };
  };
}
