// Requests and responses of the Web's fetch, for Hono and Next.js.

import { collected, heldBack } from './exchange.js';
import { problem } from './problem.js';

/** The parts of a request that stet reads, as Node has them. */
export function requestOf(request) {
  const headers = Object.fromEntries(request.headers);
  return { method: request.method, headers, headersDistinct: Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, [value]])) };
}

/** The path and query of a request. */
export const targetOf = (request) => request.url.slice(request.url.indexOf('/', request.url.indexOf('://') + 3));

/** The fields of a header, by names in lower case. */
export function fieldsOf(headers) {
  const fields = Object.fromEntries(headers);
  if (fields['set-cookie'] !== undefined) fields['set-cookie'] = headers.getSetCookie();
  return fields;
}

/** Reads the body of a request up to the limit of the options: { body } or { refusal }. */
export async function readBody({ maxBody, problemBase, sidecar, log }, request) {
  if (request.bodyUsed) {
    if (sidecar) return { body: Buffer.alloc(0) }; // which has compared the requests
    log('the request\'s body was read before this handler, so requests cannot be compared; nothing was executed. Read it in this handler, or in middleware after stet.');
    return { refusal: problem('misconfigured', { base: problemBase }) };
  }
  const refusal = (type, detail) => ({ refusal: problem(type, { base: problemBase, detail }) });
  const tooLarge = () => refusal('body-too-large', `The request body is larger than ${maxBody} bytes.`);
  if (Number(request.headers.get('content-length') ?? 0) > maxBody) return tooLarge();
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of request.body ?? []) {
      size += chunk.length;
      if (size > maxBody) return tooLarge();
      chunks.push(chunk);
    }
  } catch {
    return refusal('body-unreadable');
  }
  return { body: Buffer.concat(chunks) };
}

/** A handler's response in its stored form. before has the fields that others had set. */
export async function stored(response, before) {
  return heldBack({ status: response.status, header: fieldsOf(response.headers), ...await collected(response.body) }, before);
}

/** The response that was held back. */
export function released({ status, header, body }, expires) {
  return made(status, body, { ...header, ...(expires !== undefined && { 'idempotency-expires': expires }) });
}

/** stet's answer, with the fields that others had set before. */
export function responseOf({ status, headers, body }, before = {}) {
  return made(status, body, before, headers);
}

function made(status, body, ...lists) {
  const fields = new Headers();
  for (const [name, values] of lists.flatMap(Object.entries)) {
    fields.delete(name);
    for (const value of [values].flat()) fields.append(name, value);
  }
  if (!fields.has('content-length') && status !== 204 && status !== 304) fields.set('content-length', String(body.length));
  return new Response(status === 204 || status === 205 || status === 304 ? null : body, { status, headers: fields });
}
