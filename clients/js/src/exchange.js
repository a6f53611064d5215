// The request path of frameworks whose responses are values, such as Koa, Hono and Next.js.

import { answered, concluded, refused, troubled } from './decide.js';
import { begin } from './postgres.js';
import { maxHeld, stored } from './response.js';
import { finished, running, unended } from './running.js';

/**
 * Runs or replays an operation. handler(client) resolves to the response of the handler, with thrown if the framework has made it
 * of an error. This resolves to { response, expires } if that response can be sent, else to { answer }, with late if the
 * handler still runs. An error of the handler is thrown again, after the rollback. call identifies the request.
 */
export async function exchange({ options, operation, req, call, handler }) {
  let begun;
  try {
    begun = await begin(options, operation);
  } catch (error) {
    return { answer: troubled(options, error) };
  }
  if (begun.action !== 'run') return { answer: answered({ options, operation, req }, begun) };
  const { tx } = begun;
  const context = { options, operation, tx, req };
  running.set(call, tx);
  try {
    const response = await finished(tx, options, (async () => handler(tx.client))());
    if (!response.thrown) return { response, ...await concluded(context, response) };
    await tx.rollback();
    return { response, ...await refused(context, response) };
  } catch (error) {
    const answer = unended(options, tx, error);
    if (answer !== undefined) return { answer, late: true };
    await tx.rollback();
    throw error;
  } finally {
    running.delete(call);
  }
}

/**
 * A response in its stored form. header has its fields, as text or lists, by names in lower case; before has the fields that others had
 * set. over is true if the body is too large to hold.
 */
export function heldBack({ status, header, body, over }, before) {
  const field = (name) => (header[name] === undefined ? undefined : String(header[name]));
  const declared = header['content-length'];
  return { status, headers: stored(header, before), contentType: field('content-type') ?? null, body, over: over || body.length > maxHeld, field, header,
    cut: body.length > 0 && declared !== undefined && Number(declared) !== body.length };
}

/** The bytes of a stream of Node or of the Web: { body }, or { over } if there are too many to hold. */
export async function collected(stream) {
  const chunks = [];
  let size = 0;
  for await (const chunk of stream ?? []) {
    const bytes = Buffer.from(chunk);
    size += bytes.length;
    if (size > maxHeld) return { body: Buffer.alloc(0), over: true };
    chunks.push(bytes);
  }
  return { body: Buffer.concat(chunks) };
}
