// Waits for the outcome after a 202, by server-sent events if the service has them, otherwise by polling.

import { headersOf, linked, readUpTo, sleep } from './send.js';
import { executed, intact, classify, mayHave, mediaType, retryAfter } from './resolution.js';

const states = { accepted: false, running: false, retryable: false, unknown: false, completed: true, failed: true }; // true: settled
const every = 1000; // the shortest time between two requests
const longestPause = 30_000; // that the service has not asked for
const longestWait = 20; // seconds, of Prefer: wait
const silence = 45_000; // streams beat every 15 s
const unreachable = 120_000; // how long the status resource may fail
const notAsked = ['content-type', 'content-encoding', 'expect', 'range', 'if-range', 'if-match', 'if-none-match', 'if-modified-since', 'if-unmodified-since'];

/** The URL of the status resource that a 202 names; undefined if it names none. */
export function statusURL(answer, entry) {
  let at = answer.headers.get('Location');
  if (at === null) {
    const said = parseJSON(answer.body)?.status_url;
    if (typeof said === 'string') at = said;
  }
  if (!at) return undefined;
  const url = new URL(at, answer.url || entry.url);
  if (!/^https?:$/.test(url.protocol) || (entry.url.startsWith('https:') && url.protocol !== 'https:')) throw new TypeError(`stet: the service has named a status resource with the scheme ${url.protocol}`);
  return url;
}

/**
 * Asks until there is an outcome { outcome, execution }, for wait milliseconds at most; without one
 * { reason, execution, error }.
 */
export async function outcomeOf(c, entry, first, { secrets, signal, wait }) {
  const limit = linked(signal);
  const late = new DOMException('stet: the operation has not ended within the option wait', 'TimeoutError');
  const timer = setTimeout(() => limit.end(late), wait);
  const a = { c, entry, secrets, signal: limit.signal, failing: performance.now(), error: undefined, pauses: 0, event: '' };
  try {
    const at = statusURL(first, entry);
    for (let found; ;) {
      found = await ask(a, at);
      if (found.outcome || found.reason) return found;
      if (performance.now() - a.failing > unreachable) return gaveUp(a, 'wait');
      const least = Math.max(found.after, every);
      await sleep((found.after === 0 ? Math.min(every * 2 ** Math.min(a.pauses++, 10), longestPause) : least) * (1 + Math.random() / 10), a.signal);
      if (a.signal.aborted) break;
    }
  } catch (error) {
    a.error = error;
    if (!a.signal.aborted) return gaveUp(a, 'status');
  } finally {
    clearTimeout(timer);
    limit.done();
  }
  return { reason: signal?.aborted ? 'aborted' : 'wait', execution: mayHave, error: a.error ?? a.signal.reason };
}

const gaveUp = (a, reason, error = a.error, execution = mayHave) => ({ reason, execution, error });

// ask sends one request, and reads events while the service sends them.
async function ask(a, at) {
  const limit = linked(a.signal);
  let timer;
  const alive = (ms) => {
    clearTimeout(timer);
    timer = setTimeout(() => limit.end(new DOMException('stet: the status resource does not respond', 'TimeoutError')), ms);
  };
  alive(silence);
  try {
    const response = await get(a, at, limit.signal);
    const after = retryAfter(response.headers);
    if (response.status === 200 && mediaType(response.headers) === 'text/event-stream') return (await listen(a, response, () => alive(silence))) ?? { after: every };
    const body = await readUpTo(response, a.c.maxResponse);
    if (body === null) return gaveUp(a, 'status', new Error('stet: the status is longer than the option maxResponse'));
    if (!intact(response, body)) throw new Error('stet: the status has no body, and over plain HTTP that may be a header that broke off');
    return told(a, response, body) ?? { after };
  } catch (error) {
    if (a.signal.aborted) throw error;
    a.error = error;
    return { after: 0 }; // the status can be asked for again
  } finally {
    clearTimeout(timer);
    limit.end();
    limit.done();
  }
}

// get sends the request. Secret headers go only to the origin of the operation: not to another origin in
// Location, and not after a redirect.
async function get(a, at, signal) {
  const own = at.origin === new URL(a.entry.url).origin;
  const headers = own ? await headersOf(a.c, a.entry, a.secrets, signal) : new Headers();
  for (const name of [...notAsked, a.c.header]) headers.delete(name);
  headers.set('Accept', 'text/event-stream, application/json;q=0.9, */*;q=0.1');
  if (own) {
    headers.set('Prefer', `wait=${longestWait}`);
    if (a.event !== '') headers.set('Last-Event-ID', a.event);
  }
  const { credentials, mode } = a.entry;
  const how = { headers, signal, cache: 'no-store', ...(mode && { mode }) };
  if (!own) return a.c.send(at.href, { ...how, credentials: 'omit' });
  const response = await a.c.send(at.href, { ...how, redirect: 'manual', ...(credentials && { credentials }) });
  if (response.type !== 'opaqueredirect' && !(response.status > 300 && response.status < 309 && response.status !== 304)) return response;
  return a.c.send(at.href, { signal, cache: 'no-store', redirect: 'follow', headers: { Accept: '*/*' } });
}

// told returns the outcome in a response; undefined if the operation is in progress.
function told(a, response, body) {
  const { status, headers } = response;
  const document = status === 200 ? statusDocument(body) : undefined;
  if (status === 202 || (document && !states[document.state])) {
    heard(a, document);
    return undefined;
  }
  if (document) return outcome(a, document, body);
  const answer = { status, statusText: response.statusText, headers, body, whole: true, redirected: false, url: response.url };
  const resolution = classify(answer, a.c.replayedHeader);
  if (status === 204 && a.event !== '') { // no more events, and no outcome among them
    a.event = '';
    a.error = new Error('stet: the events have ended without an outcome');
    return undefined;
  }
  if (!resolution.replayed && (status === 408 || status === 425 || status === 429 || status >= 500)) {
    a.error = new Error(`stet: the status resource responds with ${status}`);
    return undefined;
  }
  if (resolution.replayed || status < 300) return { outcome: { answer, resolution }, execution: status < 400 ? executed : resolution.execution };
  return refused(a, status, resolution.problem, answer);
}

// refused returns the result if the status resource has no outcome.
function refused(a, status, problem, answer) {
  const gone = status === 410 && problem?.execution === 'executed';
  return { ...gaveUp(a, gone ? 'gone' : 'status', new Error(`stet: the status resource responds with ${status}`), gone ? executed : mayHave), answer, problem };
}

function heard(a, document) {
  a.failing = performance.now();
  a.error = undefined;
  if (document) a.c.tell({ operation: a.entry.named ? a.entry.name : undefined, status: 202, progress: document });
}

function parseJSON(bytes) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

// statusDocument parses a status document of stet; undefined for anything else.
function statusDocument(bytes) {
  const d = parseJSON(bytes);
  if (d === null || typeof d !== 'object' || !Object.hasOwn(states, d.state)) return undefined;
  return states[d.state] === (d.outcome !== null && typeof d.outcome === 'object') ? d : undefined;
}

// outcome reads the outcome from a status document.
function outcome(a, document, bytes) {
  const { status, problem, media_type: type, content_coding: coding, result_base64: encoded } = document.outcome;
  if (coding) return gaveUp(a, 'status', new Error(`stet: the result has the content coding ${coding}; ask for it yourself`));
  if (!(Number.isInteger(status) && status >= 200 && status < 600)) return gaveUp(a, 'status', new Error('stet: the status resource has an outcome without a status'));
  let body = new Uint8Array(0);
  const headers = new Headers();
  const raw = (name) => new TextEncoder().encode(member(member(new TextDecoder().decode(bytes), 'outcome'), name));
  if (problem !== undefined) {
    body = raw('problem');
    headers.set('Content-Type', 'application/problem+json');
  } else if (Object.hasOwn(document.outcome, 'result')) {
    body = raw('result'); // unchanged: JSON.parse would round large numbers
    headers.set('Content-Type', 'application/json');
  } else if (encoded) {
    body = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
    if (type) headers.set('Content-Type', type);
  }
  const answer = { status, statusText: '', headers, body, whole: true, redirected: false, url: a.entry.url };
  const resolution = { ...classify(answer, a.c.replayedHeader), replayed: false };
  const said = { executed, 'not executed': 'not-executed', 'may have executed': mayHave }[resolution.problem?.execution] ?? executed;
  if (status === 410 && said === executed && resolution.problem) return refused(a, status, resolution.problem, answer);
  return { outcome: { answer, resolution }, execution: said };
}

/** The text of a member of an object in JSON that is well-formed. */
export function member(json, name) {
  let at = json.indexOf('{') + 1;
  const token = /\s*("(?:[^"\\]|\\.)*"|[[\]{}]|[^\s",:[\]{}]+|[,:])/gy;
  const next = () => {
    token.lastIndex = at;
    const [match, text] = token.exec(json);
    at += match.length;
    return text;
  };
  for (let key = next(); key !== '}'; key = next()) {
    if (key === ',') continue;
    next(); // the colon
    while (/\s/.test(json[at])) at++;
    const from = at;
    let depth = 0;
    do {
      const text = next();
      if (text === '{' || text === '[') depth++;
      if (text === '}' || text === ']') depth--;
    } while (depth > 0);
    if (JSON.parse(key) === name) return json.slice(from, at);
  }
  return '';
}

// listen reads server-sent events (HTML Living Standard, section 9.2.6) until one tells the outcome. A
// stream that ends without is opened again.
async function listen(a, response, alive) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = '', data = '', id = a.event;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return undefined;
    alive();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    if (rest.length + data.length > a.c.maxResponse) return gaveUp(a, 'status', new Error('stet: an event is longer than the option maxResponse'));
    for (const line of lines) {
      const [, name, text] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
      if (line === '') {
        const bytes = new TextEncoder().encode(data), document = statusDocument(bytes);
        a.event = id;
        data = '';
        if (document && states[document.state]) return outcome(a, document, bytes);
        if (document) heard(a, document);
      } else if (name === 'data') data += `${text ?? ''}\n`;
      else if (name === 'id' && /^[ -~]{0,255}$/.test(text ?? '')) id = text ?? '';
      else if (name === '') a.failing = performance.now(); // a comment: it is alive
    }
  }
}
