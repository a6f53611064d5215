import { problemBase } from './problem.js';
import { theSidecars } from './sidecar.js';
import { statements } from './statements.js';

const known = new Set(['pool', 'scope', 'sidecar', 'namespace', 'previous', 'claimPrevious', 'class', 'name', 'ref', 'header', 'maxBody', 'maxResult', 'canonicalize', 'rollsBack', 'keep',
  'tombstone', 'timeout', 'requireTransaction', 'schema', 'table', 'problemBase', 'log', 'mode']);

/** Options with their defaults; wrong ones are errors here, and not at the first request. */
export function checked(options) {
  const o = {
    namespace: '', class: '', header: 'Idempotency-Key', maxBody: 1 << 20, maxResult: 1 << 20, rollsBack, keep: '24 hours', tombstone: null,
    timeout: 30_000, requireTransaction: false, sidecar: false, claimPrevious: false, mode: 'functions', schema: 'stet', table: 'records', problemBase, log: report, ...options,
  };
  const wrong = (what) => {
    throw new TypeError(`stet: ${what}`);
  };
  for (const name of Object.keys(o)) if (!known.has(name)) wrong(`there is no option ${name}`);
  if (typeof o.pool?.connect !== 'function') wrong('the option pool must be a Pool of pg');
  for (const name of ['sidecar', 'requireTransaction', 'claimPrevious']) if (typeof o[name] !== 'boolean') wrong(`the option ${name} must be true or false`);
  if (o.sidecar) {
    for (const name of theSidecars) if (options[name] !== undefined) wrong(`behind the sidecar there is no option ${name}: stet.yaml says it`);
    if (o.mode !== 'functions') wrong('behind the sidecar there is no other mode than functions: the sidecar has written the record');
  } else if (typeof o.scope !== 'function') wrong('the option scope is required: a function of the request that says whose key it is, so that no caller gets the response of another');
  for (const name of ['name', 'ref', 'canonicalize']) {
    if (o[name] !== undefined && typeof o[name] !== 'function') wrong(`the option ${name} must be a function`);
  }
  for (const name of ['rollsBack', 'log']) if (typeof o[name] !== 'function') wrong(`the option ${name} must be a function`);
  for (const name of ['namespace', 'class', 'header', 'schema', 'table', 'problemBase', 'keep']) {
    if (typeof o[name] !== 'string') wrong(`the option ${name} must be a string`);
  }
  for (const name of ['maxBody', 'maxResult', 'timeout']) {
    if (!Number.isSafeInteger(o[name]) || o[name] < 1 || o[name] > 0x7fffffff) wrong(`the option ${name} must be a whole number from 1 to 2147483647`);
  }
  if (!['functions', 'statements'].includes(o.mode)) wrong("the option mode must be 'functions' or 'statements'");
  if (o.maxResult > 64 << 20) wrong('the option maxResult must be at most 67108864 bytes');
  const named = (name) => typeof name === 'string' && name.isWellFormed() && Buffer.byteLength(name) <= 1024;
  if (!named(o.namespace)) wrong('the option namespace must be well-formed and have at most 1024 bytes');
  if (o.previous === undefined ? o.claimPrevious : !named(o.previous) || o.previous === o.namespace) {
    wrong('the option previous must be the namespace before this one, well-formed and with at most 1024 bytes; claimPrevious needs it');
  }
  o.namespaces = o.claimPrevious ? [o.previous, o.namespace] : [o.namespace, o.previous]; // new operations have the first
  if (!o.class.isWellFormed() || Buffer.byteLength(o.class) > 255 || /\p{Cc}/u.test(o.class)) wrong('the option class must be well-formed and have at most 255 bytes without control characters');
  if (!URL.canParse(o.problemBase)) wrong('the option problemBase must be an absolute URL');
  o.sql = statements(o);
  return Object.freeze(o);
}

/**
 * The default of the option rollsBack, as in stethttp.NewTx: a status of 500 and above, 408, or
 * a status that precedes an execution. header returns a field's value, or undefined.
 */
export function rollsBack(status, header) {
  const grpc = header('grpc-status');
  return status >= 500 || [401, 403, 407, 408, 425, 429].includes(status) || (grpc !== undefined && grpc !== '0');
}

/** The default of the option log. */
export function report(message, error) {
  console.error(`stet: ${message}`, error ?? '');
}
