// Problem documents (RFC 9457), with the types and titles of docs/problems.md.

const not = 'not executed', may = 'may have executed', done = 'executed';

// [status, title, detail, retryable, execution]
const problems = {
  'key-missing': [400, 'Idempotency key missing', 'This operation needs an idempotency key, so that it can be retried safely.', false, not],
  'key-invalid': [400, 'Idempotency key invalid', 'A key has 1 to 255 bytes of visible ASCII.', false, not],
  'key-repeated': [400, 'Idempotency key repeated', 'The request has more than one idempotency key.', false, not],
  'scope-missing': [403, 'Caller not identified', 'The request does not say which account the idempotency key belongs to.', false, not],
  'scope-failed': [500, 'Caller could not be identified', 'The server could not find out which account the idempotency key belongs to.', true, not],
  'scope-too-long': [403, 'Name of the caller too long', 'The name of the account that the idempotency key belongs to is too long.', false, not],
  'body-too-large': [413, 'Request body too large', 'The request body is larger than this operation accepts.', false, not],
  'body-unreadable': [400, 'Request body unreadable', 'The request body ended early or could not be read.', true, not],
  'body-invalid': [400, 'Request body invalid', 'The request body is not a JSON text.', false, not],
  'media-type-unsupported': [415, 'Media type not supported', 'This operation takes application/json, without a content coding.', false, not],
  'mismatch': [422, 'Idempotency key reused for another request', 'This key was used before for a request that differs from this one.', false, not],
  'in-flight': [409, 'Operation in flight', 'The first request with this key is still being executed.', true, may],
  'outcome-unknown': [504, 'Outcome unknown',
    'The operation may have been executed. Keep asking with the same key: a new key would risk a second execution.', true, may],
  'result-expired': [410, 'Result no longer kept',
    'The operation was executed before. Its response has expired or was too large to keep. It does not run again.', false, done],
  'result-unreadable': [500, 'Stored result unreadable',
    'The operation was executed before, but its stored response cannot be read. It does not run again.', false, done],
  'coding-not-acceptable': [406, 'Content coding not acceptable',
    'The operation was executed before. Its response has a content coding that Accept-Encoding excludes.', false, done],
  'operation-failed': [500, 'Operation failed', 'The operation failed. It may have had an effect before, and does not run again.', false, may],
  'store-unavailable': [503, 'Idempotency store unavailable', 'Nothing was executed, because it could not have been recorded.', true, not],
  'response-invalid': [500, 'Response invalid', 'The handler wrote a status code that is not valid. The operation had no effect.', true, not],
  'response-missing': [500, 'Response missing', 'The operation ended without a response. It had no effect.', true, not],
  'response-too-large': [500, 'Response too large',
    'The response is too large to hold until the commit, so the operation was rolled back.', false, not],
  'not-settled': [500, 'Not settled',
    'The service has executed the operation, and has recorded no outcome of it in the same transaction. It does not run again.', false, may],
  'misconfigured': [500, 'Idempotency misconfigured', 'The server could not begin the operation.', false, not],
};

/** The text of a problem, whether a retry may run, and whether the operation was executed. */
export function problemOf(name) {
  const [, , detail, retryable, execution] = problems[name];
  return { detail, retryable, execution };
}

/** The prefix of the type of each problem. */
export const problemBase = 'https://github.com/stet-go/stet/blob/main/docs/problems.md#';

/**
 * Returns the response of a problem: status, headers and body. again is Retry-After in seconds;
 * detail and execution replace the problem's own. operation is the ID by which operators find it.
 */
export function problem(name, { base = problemBase, detail, again, execution, operation } = {}) {
  const [status, title, text, retryable, executed] = problems[name];
  const type = base + name;
  const document = { type, title, status, detail: detail ?? text, retryable, execution: execution ?? executed, ...(operation && { operation }) };
  const headers = { 'Content-Type': 'application/problem+json', 'Cache-Control': 'no-store' };
  if (again !== undefined) headers['Retry-After'] = String(again);
  if (operation) headers['Stet-Operation'] = operation;
  if (name === 'key-missing') headers.Link = `<${type}>; rel="describedby"; type="text/html"`;
  return { status, headers, body: Buffer.from(JSON.stringify(document) + '\n'), problem: name };
}

const untold = 'The operation failed, and may have been executed. Its stored result has expired or cannot be read. It does not run again.';

/** result-expired or result-unreadable, where no more is known than that it may have been executed. */
export const perhaps = { execution: may, detail: untold };
