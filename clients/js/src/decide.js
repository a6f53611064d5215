// Decisions on an operation that all adapters share: which response is committed, and which answer is sent. An answer is { status, headers, body, problem }.

import { advice, described, kind } from './errors.js';
import { begin } from './postgres.js';
import { perhaps, problem } from './problem.js';
import { idOf, outcomeOf } from './record.js';
import { accepts, lookup, replayed } from './response.js';
import { fenced, logOnce } from './sidecar.js';

/** The answer if the store failed before anything was committed. */
export function troubled(options, error) {
  const answer = (type, more) => problem(type, { base: options.problemBase, ...more });
  switch (kind(error)) {
    case 'unavailable':
      options.log('the store cannot be used; nothing was executed', described(error));
      return answer('store-unavailable', { again: 1 });
    case 'unreadable':
      options.log('a stored response cannot be read', described(error));
      return answer('result-unreadable', perhaps);
    default:
      options.log(`an operation could not be run; nothing was executed${advice(options, error)}`, described(error));
      return answer('misconfigured');
  }
}

/** The problem of a row of begin without an outcome to replay: its name, and the parts that replace its text. */
export function withoutOutcome({ action, state }) {
  switch (action) {
    case 'in_flight':
      return ['in-flight', { again: 1 }];
    case 'mismatch':
      return ['mismatch'];
    case 'expired':
      return ['result-expired', state === 'failed' ? perhaps : undefined];
    case 'nothing':
      return ['store-unavailable', { again: 1 }];
    default:
      return ['outcome-unknown'];
  }
}

/** The answer to a request whose operation does not run: a row of begin or of commit. */
export function answered({ options, operation, req }, row) {
  const answer = (type, more) => problem(type, { base: options.problemBase, ...more });
  if (row.action !== 'replay') {
    const [type, more] = withoutOutcome(row);
    return answer(type, type === 'outcome-unknown' ? { operation: idOf(options, operation) } : more);
  }
  const { headers, body, expires } = row;
  let { status, contentType } = row;
  if (status === 0) { // an outcome that is no response
    if (row.state === 'failed') {
      const failed = answer('operation-failed');
      return { ...failed, headers: { ...failed.headers, ...(expires && { 'Idempotency-Expires': expires }), 'Idempotent-Replayed': 'true' } };
    }
    status = body.length > 0 ? 200 : 204;
    contentType ??= body.length > 0 ? 'application/octet-stream' : null;
  }
  const codings = lookup(headers, 'content-encoding') ?? [];
  if (!accepts(req.headersDistinct['accept-encoding'], codings)) return answer('coding-not-acceptable');
  return replayed({ status, headers, contentType, body, expires }, req.headers);
}

/**
 * Commits or rolls back a response that a handler has written. It resolves to { expires } if that response can be sent, else to
 * { answer }. response has { status, headers, contentType, body, field }, cut if it is not as long as it says, and over if it is too large to hold. field(name) is a header field.
 */
export async function concluded(context, response) {
  const { options, operation, tx } = context;
  const answer = (type, more) => ({ answer: problem(type, { base: options.problemBase, ...more }) });
  const { cut, over, status, field } = response;
  if (over || cut) {
    if (!over) options.log('a response is not as long as its Content-Length says; it was rolled back');
    await tx.rollback();
    return over ? answer('response-too-large') : answer('response-invalid', { detail: 'The response is not as long as it says. The operation had no effect.' });
  }
  if (options.rollsBack(status, field)) {
    await tx.rollback();
    return {};
  }
  if (!tx.used) {
    const unused = `${operation.name || 'a handler'} is protected and never used its client, so its writes are a commit of their own, and a crash between the two makes a retry write again: write by the client that stet passes to the handler`;
    if (options.requireTransaction) {
      options.log(`${unused}; it was rolled back`);
      await tx.rollback();
      return answer('misconfigured');
    }
    logOnce(options, unused);
  }
  if (!options.sidecar) misplaced(options, operation, response);
  let done;
  try {
    done = await tx.commit(outcomeOf(response, options.maxResult));
  } catch (error) {
    await tx.rollback();
    if (!options.sidecar && kind(error) === 'fenced') throw new Error('stet: the handler has ended its transaction itself, by COMMIT or ROLLBACK; nothing was settled, and a retry runs again', { cause: error });
    if (kind(error) === 'other' || error === tx.late) throw error;
    return { answer: options.sidecar && kind(error) === 'fenced' ? fenced(options) : troubled(options, error) };
  }
  return done.action === 'committed' ? { expires: tx.expires } : { answer: answered(context, done) };
}

/**
 * Stores the response that a framework has made of an error, after the writes were undone, if it is a refusal: 3xx, or 4xx
 * except the statuses of rollsBack. It resolves as concluded does.
 */
export async function refused(context, response) {
  const { options, operation } = context;
  const { cut, over, status, field } = response;
  if (cut || over || options.rollsBack(status, field)) return {};
  if (status < 300) {
    options.log(`an error was answered with the status ${status}; it was rolled back, and its response was not sent`);
    return { answer: problem('response-missing', { base: options.problemBase }) };
  }
  try {
    const { tx, ...row } = await begin(options, operation);
    if (row.action !== 'run') return { answer: answered(context, row) }; // a retry has come in between
    const done = await tx.commit(outcomeOf(response, options.maxResult));
    return done.action === 'committed' ? { expires: tx.expires } : { answer: answered(context, done) };
  } catch (error) {
    return { answer: options.sidecar && kind(error) === 'fenced' ? fenced(options) : troubled(options, error) };
  }
}

// misplaced logs once for each operation the fields of middleware inside the handler that suit this request alone.
function misplaced(options, { name }, { headers }) {
  const inside = (field) => lookup(headers, field)?.join();
  if (inside('content-encoding')) {
    logOnce(options, `${name} has a Content-Encoding that is stored with its response, so a retry that does not accept it is refused with 406: compress in front of the handler, or in front of the service`);
  }
  if (![undefined, '', '*'].includes(inside('access-control-allow-origin'))) {
    logOnce(options, `${name} has an Access-Control-Allow-Origin that is stored with its response, so a replay to another origin has none: set CORS headers before the handler`);
  }
}
