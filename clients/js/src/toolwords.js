// The keys of tool calls, and the texts that a model reads. Those of Go's contrib/stetmcp are the same (docs/vectors.json).

const prefix = 'io.github.stet-go/';
export const keyName = `${prefix}idempotency-key`, problemName = `${prefix}problem`, replayedName = `${prefix}replayed`;

const look = 'Do not try it in another way, or with another key: that could do it twice. Find out by looking at the state itself, or tell the user that the outcome is not known.';
const unreadable = 'its stored result cannot be read';

const texts = {
  'key-missing': `Not executed: this tool needs an idempotency key, so that it can be retried safely. Call it again with _meta {"${keyName}": "<key>"}: a random text (a UUID) of your own, made once for this action and sent again with every retry of it.`,
  'key-invalid': `Not executed: the idempotency key in _meta "${keyName}" is not valid. {why} A key is a text of 1 to 255 bytes of visible ASCII without spaces, such as a UUID.`,
  'scope-missing': 'Not executed: the server does not know on whose behalf this call is made. Sign in, and call it again.',
  'scope-failed': 'Not executed: the server could not find out on whose behalf this call is made. Call it again later, {same}.',
  misconfigured: 'Not executed: the server is not set up rightly for this tool. Calling it again does not help; tell the user.',
  'not-executed': 'Not executed: what the tool began was undone. It is safe to call it again, {same}.',
  mismatch: 'Not executed: this idempotency key was used before for another call, of another tool or with other arguments. To repeat that call, send the same arguments. For a new action, use a new key.',
  'in-flight': 'Still running: the first of these calls has not ended. Do not use another key. Call it again in a while, {same}, to get its result.',
  'outcome-unknown': `Outcome unknown: it may have been executed or not. ${look} Calling it again {same} is safe: that tells the outcome once it is known.`,
  'store-unavailable': 'Not executed: the server cannot record this call right now. It is safe to call it again later, {same}.',
  'result-expired executed': 'Executed: this was done before. Its result was too large to keep, or is no longer kept. It does not run again; do not use another key.',
  'result-expired': `Failed: its result is no longer kept. It does not run again. It may have had an effect before it failed. ${look}`,
  'result-unreadable executed': `Executed: this was done before, but ${unreadable}. It does not run again. Look at the state itself, and do not use another key.`,
  'result-unreadable': `It may have been executed: ${unreadable}, and it does not run again. ${look}`,
  // Those of a plain function, which has no _meta.
  'no-key': 'Not executed: this call has no idempotency key. Calling it again does not help; tell the user.',
  'no-business-key': 'Not executed: the server could not find the key of this action in the arguments. Calling it again with the same arguments does not help.',
};
texts['response-missing'] = texts['not-executed']; // after the timeout, or an end of the transaction by the handler

/** The text of a problem, which begins with the state. keyed: the host has sent the key in _meta. */
export function textOf(problem, execution, { keyed = false, why = '' } = {}) {
  const text = texts[`${problem} ${execution}`] ?? texts[problem] ?? `It may have been executed, and does not run again. ${look}`;
  return text.replace('{same}', keyed ? 'with the same arguments and the same key in _meta' : 'with exactly the same arguments').replace('{why}', why);
}

/** Why a key of a host is invalid, or ''. */
export function flaw(key) {
  if (typeof key !== 'string') return 'It is not a text.';
  if (key === '') return 'The key is empty.';
  if (Buffer.byteLength(key) > 255) return 'The key is longer than 255 bytes.';
  return /[^!-~]/.test(key) ? 'The key has a byte that is not visible ASCII.' : '';
}
