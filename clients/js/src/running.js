// A handler that runs: for how long, and that no other runs inside it for the same request.

import { described } from './errors.js';
import { problem } from './problem.js';
import { destroyed } from './response.js';
import { logOnce } from './sidecar.js';

/** The transactions of the requests whose handlers run. */
export const running = new WeakMap();

/**
 * Returns a refusal if the request's operation is running, so that this call would be inside it. A response of
 * the inner call, such as in-flight, must not be the outcome of the outer one. The outer one is rolled back.
 */
export function nested(options, req) {
  const tx = running.get(req);
  if (tx === undefined) return undefined;
  const message = 'a protected handler was called inside a protected handler of the same request; it was rolled back';
  tx.late ??= new Error(`stet: ${message}`);
  options.log(message);
  return problem('misconfigured', { base: options.problemBase });
}

const overdue = new Error('stet: the handler has not ended its response in time');
const longWait = 1000; // milliseconds after which the pool is looked at

// crowded logs once that handlers run while callers wait for a connection of a pool that has no free one.
function crowded(options, pool) {
  if (pool.waitingCount > 0 && pool.idleCount === 0) {
    logOnce(options, 'a handler has run for a second while callers wait for a connection of the pool: a handler that takes a second connection waits for itself; give that code the handler\'s client');
  }
}

/**
 * Waits for the end of a handler's response, which is by default the value of called, the handler's promise. It rejects if the
 * handler fails before that, or takes longer than the option timeout.
 */
export async function finished(tx, options, called, ended = called) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(reject, options.timeout, overdue);
  });
  const look = setTimeout(crowded, longWait, options, tx.pool);
  const failed = new Promise((_, reject) => called.catch(reject));
  failed.catch((error) => {
    if (tx.committed) tx.options.log('a handler failed after its outcome was committed; the outcome is unchanged', described(error));
    else tx.late ??= error; // until the COMMIT it counts
  });
  try {
    const value = await Promise.race([ended, failed, late]);
    // Statements that the handler sends in the same tick are still in time.
    await Promise.race([new Promise(setImmediate), failed]);
    return value;
  } finally {
    clearTimeout(timer);
    clearTimeout(look);
  }
}

/** The answer if a handler has not ended its response: its transaction is ended. undefined for another error, which rolls back. */
export function unended(options, tx, error) {
  if (error !== overdue && error !== destroyed) return undefined;
  const { waitingCount } = tx.pool;
  const held = waitingCount > 0 ? `. ${waitingCount} callers wait for a connection of the pool: a handler that takes a second one waits for itself; give that code the handler's client` : '';
  options.log((error === overdue ? `a handler has not ended its response in ${options.timeout} ms; it was rolled back` : 'a handler\'s response was destroyed before its end; it was rolled back') + held);
  tx.abandon();
  return problem('response-missing', { base: options.problemBase });
}
