// NestJS, on Express or Fastify: an interceptor that lets a handler run once for each key.

import { createParamDecorator } from '@nestjs/common';
import { lastValueFrom, of } from 'rxjs';
import { described } from './errors.js';
import { checked } from './options.js';
import { problem } from './problem.js';
import { fingerprinted, named, read } from './request.js';
import { mute, send } from './response.js';
import { nested } from './running.js';
import { serve } from './serve.js';

const clients = new WeakMap(); // by the request of the framework

/** The parameter of a protected handler that is its client. */
export const Client = createParamDecorator((_, context) => {
  const client = clients.get(context.switchToHttp().getRequest());
  if (client === undefined) throw new Error('stet: @Client() needs @UseInterceptors(idempotency(…)) at the same handler');
  return client;
});

/** Returns an interceptor. */
export function idempotency(options) {
  const o = checked(options);
  return { intercept: (context, next) => intercept(o, context.switchToHttp(), next) };
}

async function intercept(o, http, next) {
  const request = http.getRequest(), response = http.getResponse();
  const req = request.raw ?? request, res = response.raw ?? response;
  const before = { ...(response.getHeaders ?? res.getHeaders).call(response) };
  const answering = () => {
    if (res === response) return;
    response.hijack(); // of Fastify
    for (const [name, value] of Object.entries(before)) res.setHeader(name, value);
  };
  const silent = () => {
    mute(res);
    return of(undefined);
  };
  const say = (what) => {
    answering();
    send(res, what);
    return silent();
  };
  const inside = nested(o, req);
  if (inside !== undefined) return say(inside);
  const { operation, refusal } = await named(o, request, req, `${req.method} ${request.route?.path ?? request.routeOptions?.url ?? req.url}`);
  const got = refusal === undefined ? await body(o, request, req) : { refusal };
  if (got.refusal !== undefined) return say(got.refusal);
  operation.fingerprint = fingerprinted(o, req, request.originalUrl ?? req.url, got.body);
  return new Promise((resolve, reject) => {
    let replying = false;
    const handler = async (client) => {
      clients.set(request, client);
      const value = await lastValueFrom(next.handle(), { defaultValue: undefined });
      replying = true;
      resolve(of(value)); // Nest writes it, and that is held back
    };
    serve({ options: o, operation, req, res, before, handler, answering }).then(() => { if (!replying) resolve(silent()); }, (error) => {
      if (!replying) return reject(error);
      o.log('a response could not be committed; it was rolled back', described(error));
      if (!res.headersSent) say({ status: 500, headers: { 'Content-Type': 'application/json; charset=utf-8' }, body: Buffer.from('{"statusCode":500,"message":"Internal server error"}') });
    });
  });
}

// body is that of the request, which Nest has read and parsed.
async function body(o, request, req) {
  const { rawBody } = request;
  if (rawBody?.length > o.maxBody) return { refusal: problem('body-too-large', { base: o.problemBase, detail: `The request body is larger than ${o.maxBody} bytes.` }) };
  if (rawBody !== undefined) return { body: rawBody };
  const has = req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length'] ?? 0) > 0;
  if (!has || o.sidecar) return { body: Buffer.alloc(0) }; // the sidecar has compared the requests
  if (!req.readableDidRead) { // Nest has no parser for its type
    const got = await read(o, req, req);
    request.rawBody = got.body;
    return got;
  }
  o.log('the request\'s body was read, and request.rawBody is not there, so requests cannot be compared; nothing was executed. Use NestFactory.create(AppModule, { rawBody: true }).');
  return { refusal: problem('misconfigured', { base: o.problemBase }) };
}
