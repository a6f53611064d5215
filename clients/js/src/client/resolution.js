// Reads from an answer whether the operation was executed, and whether to retry. The decisions are those of
// stetclient, for Go.

export const executed = 'executed', notExecuted = 'not-executed', mayHave = 'may-have-executed';

const said = { executed, 'not executed': notExecuted, 'may have executed': mayHave };
const problemType = 'application/problem+json';
const maxProblem = 64 << 10; // bytes
const maxSeconds = 2 ** 31; // of Retry-After; a longer wait is shortened to it

/** Says whether any of several attempts executed. */
export function together(a, b) {
  if (a === executed || b === executed) return executed;
  return a === notExecuted && b === notExecuted ? notExecuted : mayHave;
}

/** The media type of a response, without parameters. */
export const mediaType = (headers) => (headers.get('Content-Type') ?? '').split(';')[0].trim().toLowerCase();

/** The problem document (RFC 9457) of an answer, or null. */
export function parseProblem(headers, body) {
  if (mediaType(headers) !== problemType || body.length > maxProblem) return null;
  try {
    const document = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body));
    return document !== null && typeof document === 'object' && !Array.isArray(document) ? document : null;
  } catch {
    return null;
  }
}

/**
 * Classifies an answer { status, headers, body, redirected }. stands: it is the operation's outcome, so its execution
 * counts for all attempts.
 */
export function classify({ status, headers, body, redirected = false }, replayedHeader) {
  const replayed = headers.get(replayedHeader) === 'true';
  const problem = status >= 400 ? parseProblem(headers, body) : null;
  const told = headerExecution(headers, replayed);
  // A stored outcome: a retry would only replay it.
  const stored = replayed || told === notExecuted;
  const execution = typeof problem?.retryable === 'boolean' && Object.hasOwn(said, problem.execution) ? said[problem.execution] : undefined;
  const resolution = { execution: told ?? execution ?? executionOf(status, headers, replayed, problem), retry: false, after: retryAfter(headers), replayed, problem };
  if (stored || told === executed) resolution.retry = false;
  else if (execution !== undefined) resolution.retry = problem.retryable;
  else resolution.retry = retried(status);
  if (never(status)) resolution.retry = false;
  resolution.stands = stored;
  // A redirect was followed, perhaps by a GET. A refusal of that says nothing about the operation.
  if (redirected && resolution.execution === notExecuted) resolution.execution = mayHave;
  resolution.elsewhere = redirected && !stored && status >= 300;
  return resolution;
}

// The value of Idempotency-Execution; undefined if it is absent or does not count. It has precedence over the problem document,
// because the handler may have copied that from another service. "Not executed" permits a new key. A service may copy
// that value from the response of another service. Therefore it counts in a stored response only.
// Idempotency-Expires marks a stored response, also the first one, which is not a replay.
function headerExecution(headers, replayed) {
  const says = headers.get('Idempotency-Execution');
  const told = Object.hasOwn(said, says) ? said[says] : undefined;
  return told !== notExecuted || replayed || headers.get('Idempotency-Expires') ? told : undefined;
}

/** The request itself is wrong, and would be the same again. */
export const never = (status) => status === 400 || status === 422;

// retried: a response that says no more than its status is worth another attempt.
function retried(status) {
  if (status === 408 || status === 409 || status === 425 || status === 429) return true;
  return status >= 500 && status !== 501 && status !== 505;
}

/** Whether the operation was executed, by the header and the status of a response. */
export function executionOf(status, headers, replayed, problem) {
  const told = headerExecution(headers, replayed);
  if (told !== undefined) return told;
  if (replayed || (status >= 200 && status < 300)) return executed;
  // A problem document that cannot be read might have said something else.
  if (problem === null ? mediaType(headers) === problemType : problem.execution !== undefined) return mayHave;
  if (status === 401 || status === 403 || status === 407 || status === 425 || status === 429) return notExecuted;
  return status === 503 && headers.has('Retry-After') ? notExecuted : mayHave;
}

const node = globalThis.process?.versions?.node !== undefined && globalThis.document === undefined; // whose fetch is strict

/**
 * Reports whether a response is complete. Over plain HTTP, Chromium accepts a truncated header as
 * a complete one without a body, "HTTP/1.1 " as a 200, and, at port 80, "HT" as the body of a 200. A response with a body
 * has a complete header, and Chromium checks the length of the body.
 */
export function intact({ status, headers, url }, body) {
  if (node || url.startsWith('https:')) return true;
  if (headers.keys().next().done) return false;
  return body === null || body.length > 0 || status === 204 || status === 304 || headers.get('Content-Length') === '0';
}

/**
 * The wait that Retry-After asks for (RFC 9110, section 10.2.3), in milliseconds; 0 without one. A
 * date is compared with the response's own, so that clocks need not agree.
 */
export function retryAfter(headers, now = Date.now()) {
  const value = (headers.get('Retry-After') ?? '').trim();
  if (/^[0-9]+$/.test(value)) return Math.min(Number(value), maxSeconds) * 1000;
  const at = httpDate(value);
  if (at === undefined) return 0;
  return Math.min(Math.max(0, at - (httpDate(headers.get('Date') ?? '') ?? now)), maxSeconds * 1000);
}

function httpDate(text) {
  const at = / GMT$/.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? undefined : at;
}

// Of Node: there was no connection, so nothing was sent. Browsers do not tell, and after a redirect it is
// not the connection of the operation.
const unsent = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT']);

/** Whether an attempt without a response executed the operation. */
export const executionOfFailure = (error) => (unsent.has(error?.cause?.code) ? notExecuted : mayHave);
