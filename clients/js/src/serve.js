// The request path of frameworks that write to Node's response, such as Express and Fastify: the response is held back and committed.

import { answered, concluded, refused, troubled } from './decide.js';
import { begin } from './postgres.js';
import { finished, running, unended } from './running.js';
import { Capture, destroyed, mute, send } from './response.js';

/**
 * Runs or replays an operation, and answers. handler(client) is called with a client in the
 * transaction, and its response goes to res. An error that it throws is thrown again, after the rollback;
 * then nothing was sent, and what the framework makes of the error may be stored (see refusal). before is
 * the header that others had set; answering is called before stet itself answers.
 */
export async function serve({ options, operation, req, res, before, handler, answering = () => {} }) {
  const say = (what) => {
    answering();
    send(res, what);
  };
  let begun;
  try {
    begun = await begin(options, operation);
  } catch (error) {
    return say(troubled(options, error));
  }
  if (begun.action !== 'run') return say(answered({ options, operation, req }, begun));
  const { tx } = begun;
  // The sidecar responds to a retry without this middleware, so the whole header is stored.
  const capture = new Capture(res, options.sidecar ? {} : before);
  const context = { options, operation, tx, req };
  running.set(req, tx);
  try {
    await finished(tx, options, (async () => handler(tx.client))(), capture.ended);
  } catch (error) {
    running.delete(req);
    const answer = unended(options, tx, error);
    if (answer !== undefined) {
      capture.retract();
      say(answer);
      return mute(res);
    }
    await tx.rollback();
    capture.retract();
    refusal(context, new Capture(res, options.sidecar ? {} : before), say);
    throw error;
  }
  try {
    respond(capture, await concluded(context, heldBack(capture)), say);
  } catch (error) {
    await tx.rollback();
    capture.retract();
    throw error;
  } finally {
    running.delete(req);
  }
}

function heldBack(capture) {
  const field = (name) => {
    const value = capture.res.getHeader(name);
    return value === undefined ? undefined : String(value);
  };
  return { ...capture.response(), over: capture.over, field };
}

// respond sends the held-back response, or another one.
function respond(capture, { answer, expires }, say) {
  if (answer === undefined) return capture.send(expires);
  capture.retract();
  say(answer);
}

/** Holds back the response that the framework makes of an error, and stores it if it is a refusal. */
export function refusal(context, capture, say) {
  const conclude = async () => {
    await capture.ended;
    respond(capture, await refused(context, heldBack(capture)), say);
  };
  conclude().catch((error) => {
    capture.retract();
    if (error === destroyed) return capture.res.destroy();
    say(troubled(context.options, error));
  });
}
