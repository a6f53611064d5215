// The client: requests that are executed once, even if the network fails or the page is reloaded.

import { outcomeOf, statusURL } from './client/accepted.js';
import { capture, checkName, mint } from './client/request.js';
import { attempts, linked, tooOld } from './client/send.js';
import { executed, mayHave, notExecuted, parseProblem } from './client/resolution.js';
import { indexedDBJournal } from './journal.js';

export { indexedDBJournal, memoryJournal } from './journal.js';

const day = 24 * 3600_000;
const journalTimeout = 10_000; // milliseconds for each step of the journal
const concurrency = 4; // of resume

// Each option that is a number: its default, its least and its greatest value.
const numbers = {
  attempts: [8, 1, 10_000], elapsed: [120_000, 0, day], base: [200, 1, day], cap: [20_000, 1, day], attemptTimeout: [30_000, 1, day],
  wait: [120_000, 0, day], maxAge: [23 * 3600_000, 1, 365 * day], maxBody: [1 << 20, 0, 64 << 20], maxResponse: [1 << 20, 0, 64 << 20],
};
const others = ['journal', 'header', 'raw', 'replayedHeader', 'secretHeaders', 'keepSecrets', 'authorize', 'observe', 'fetch'];

function configure(options) {
  for (const name of Object.keys(options)) {
    if (!(name in numbers) && !others.includes(name)) throw new TypeError(`stet: createClient has no option ${name}`);
  }
  const c = {};
  for (const [name, [usual, least, greatest]] of Object.entries(numbers)) {
    c[name] = options[name] ?? usual;
    if (!(Number.isFinite(c[name]) && c[name] >= least && c[name] <= greatest)) throw new TypeError(`stet: the option ${name} is ${c[name]}; it must be ${least} to ${greatest}`);
  }
  const { header = 'Idempotency-Key', replayedHeader = 'Idempotent-Replayed', raw = false, secretHeaders = [], keepSecrets = false, authorize, observe } = options;
  for (const name of [header, replayedHeader, ...secretHeaders]) new Headers([[name, '']]); // a TypeError if it is no name
  for (const [name, value] of Object.entries({ authorize, observe })) {
    if (value !== undefined && typeof value !== 'function') throw new TypeError(`stet: the option ${name} must be a function`);
  }
  const secret = ['authorization', 'proxy-authorization', 'cookie', ...secretHeaders.map((name) => name.toLowerCase())];
  let { journal } = options;
  // Not before it is used: there is no IndexedDB where a page is rendered on the server.
  Object.defineProperty(c, 'journal', { get: () => (journal ??= indexedDBJournal()) });
  return Object.assign(c, {
    header, replayedHeader, raw, authorize, secretHeaders: new Set(keepSecrets ? [] : secret),
    send: options.fetch ?? ((...request) => globalThis.fetch(...request)),
    tell: (event) => {
      try {
        observe?.(event);
      } catch (error) {
        console.error('stet: the option observe has thrown', error);
      }
    },
  });
}

/** Returns a client. Wrong options are errors here. */
export function createClient(options = {}) {
  const c = configure(options);
  return {
    fetch: async (url, init = {}) => {
      const { wait = c.wait, signal } = init;
      if (!(Number.isFinite(wait) && wait >= 0 && wait <= day)) throw new TypeError(`stet: the option wait is ${wait}; it must be 0 to ${day}`);
      const { entry, secrets } = await capture(url, init, c);
      return alone(c, entry, signal, () => begin(c, entry, init.key !== undefined, { secrets, signal, wait }));
    },
    pending: async () => (await untold(c)).map(({ name, method, url, created, execution, answer }) => ({ operation: name, method, url, created: new Date(created), execution, settled: answer !== null })),
    resume: ({ signal } = {}) => resume(c, signal),
    forget: (operation, { unsettled = false } = {}) => forget(c, operation, unsettled),
  };
}

const untold = async (c) => (await inTime(c.journal.list())).filter(({ told }) => told === null);

// inTime bounds a step of the journal: a database may be blocked.
async function inTime(step) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`stet: the journal has not answered for ${journalTimeout / 1000} seconds`)), journalTimeout);
  });
  try {
    return await Promise.race([step, late]);
  } finally {
    clearTimeout(timer);
  }
}

// alone calls fn while no other call, in any tab, has the operation in progress.
async function alone(c, entry, signal, fn) {
  const limit = linked(signal);
  const busy = new DOMException('stet: another tab has the operation in progress', 'TimeoutError');
  const timer = setTimeout(() => limit.end(busy), c.elapsed + c.wait + c.attemptTimeout);
  let entered = false;
  try {
    return await c.journal.exclusive(entry.name, limit.signal, () => {
      entered = true;
      clearTimeout(timer);
      return fn();
    });
  } catch (error) {
    if (entered) throw error;
    const reason = signal?.aborted ? 'aborted' : limit.signal.aborted ? 'busy' : 'journal';
    // With a name, another call may have sent it.
    return answerOf(c, entry, { reason, error, execution: entry.named || entry.turn ? mayHave : notExecuted });
  } finally {
    clearTimeout(timer);
    limit.done();
  }
}

// begin makes the call of an entry that may be in the journal, with another key, already.
async function begin(c, wanted, given, how, tries = 3) {
  const turn = mint();
  let entry;
  try {
    entry = await inTime(c.journal.add({ ...wanted, turn }));
  } catch (error) {
    if (error?.name === 'JournalFull') return answerOf(c, wanted, { reason: 'journal-full', error, execution: notExecuted });
    // The journal may have stored it nevertheless, and resume would send it. A name may have had an entry before.
    const gone = !wanted.named && await inTime(c.journal.remove(wanted.name, wanted.key)).catch(() => false);
    return answerOf(c, wanted, { reason: 'journal', error, execution: gone ? notExecuted : mayHave });
  }
  if (entry.turn === turn) return run(c, entry, turn, { ...how, known: notExecuted });
  if (entry.digest !== wanted.digest && !given && corrects(wanted, entry) && tries > 1) {
    await inTime(c.journal.remove(entry.name, entry.key)).catch(() => {}); // then it is a mismatch
    return begin(c, wanted, given, how, tries - 1);
  }
  if (entry.digest !== wanted.digest || (given && entry.key !== wanted.key)) {
    const error = new Error('stet: the journal has another request, or another key, under the name of this operation');
    return answerOf(c, entry, { reason: 'mismatch', error, execution: entry.execution });
  }
  const answer = await further(c, entry, how);
  if (answer !== undefined) return answer;
  // Another tab has ended it in the meantime.
  if (tries > 1) return begin(c, wanted, given, how, tries - 1);
  return answerOf(c, wanted, { reason: 'busy', error: new Error('stet: other tabs have the operation in progress'), execution: mayHave });
}

// corrects reports whether a request is that of an entry with other content, which the service has refused: a form that
// is sent again with corrected input is another operation, under a key of its own.
function corrects(wanted, { method, url, answer }) {
  if (answer === null || wanted.method !== method || wanted.url !== url) return false;
  const problem = parseProblem(new Headers(answer.headers), answer.body ?? new Uint8Array(0));
  return [400, 402, 409, 422].includes(answer.status) && problem?.execution === undefined; // which those of stet have
}

// further makes the call of an entry that was in the journal before; undefined if it has ended in the meantime.
async function further(c, { name, key }, how) {
  const turn = mint();
  let entry;
  try {
    entry = await inTime(c.journal.begin(name, key, turn));
  } catch (error) {
    return answerOf(c, { name, key, named: true }, { reason: 'journal', error, execution: mayHave });
  }
  if (entry === undefined) return undefined;
  if (entry.answer !== null) return recorded(c, entry);
  if (tooOld(c, entry)) {
    const error = new Error('stet: the operation was begun so long ago that the service may have forgotten its key');
    return answerOf(c, entry, { reason: 'stale', error, execution: entry.execution });
  }
  return run(c, entry, turn, { ...how, known: entry.execution });
}

// recorded is the outcome that the journal has.
function recorded(c, entry) {
  const { status, statusText, headers, body, execution, redirected } = entry.answer;
  const problem = parseProblem(new Headers(headers), body ?? new Uint8Array(0));
  const answer = body === null ? undefined : { status, statusText, headers: new Headers(headers), body, redirected };
  return answerOf(c, entry, { reason: answer ? 'outcome' : 'gone', settled: true, answer, execution, resolution: { replayed: true, problem } });
}

// run sends an entry, waits for the outcome after a 202, and stores the outcome.
async function run(c, entry, turn, how) {
  const all = await attempts(c, entry, how);
  if (all.reason !== undefined) return unsettled(c, entry, turn, all);
  const { resolution } = all;
  if (!resolution.stands && resolution.execution === notExecuted) { // a refusal is no outcome of what an earlier attempt may have done
    return unsettled(c, entry, turn, { ...all, reason: 'refused' });
  }
  if (all.answer.status !== 202 || how.wait === 0) return settle(c, entry, all);
  let at;
  try {
    at = statusURL(all.answer, entry);
  } catch (error) {
    return unsettled(c, entry, turn, { ...all, reason: 'status', error, execution: mayHave });
  }
  if (at === undefined) return settle(c, entry, all);
  const end = await outcomeOf(c, entry, all.answer, how);
  if (end.outcome) return settle(c, entry, { ...all, ...end.outcome, execution: end.execution });
  if (end.reason === 'gone') return settle(c, entry, { ...all, reason: 'gone', answer: { ...end.answer, whole: false }, execution: end.execution, resolution: { ...resolution, problem: end.problem } });
  return unsettled(c, entry, turn, { ...all, ...end, answer: end.answer ?? all.answer });
}

// settle stores the outcome. If the journal fails, the outcome is valid nevertheless, and resume requests it again.
async function settle(c, entry, all) {
  const { status, statusText, headers, body, whole, redirected } = all.answer;
  let error;
  try {
    await inTime(c.journal.settle(entry.name, entry.key, { status, statusText, redirected, headers: [...headers].filter(([name]) => name !== 'set-cookie'), body: whole ? body : null, execution: all.execution }));
  } catch (failure) {
    error = failure;
    c.tell({ operation: entry.named ? entry.name : undefined, error });
  }
  return answerOf(c, entry, { ...all, error, settled: true, reason: whole ? 'outcome' : 'gone', answer: whole ? all.answer : undefined });
}

// unsettled stores the result of attempts without an outcome. An operation that was not executed is removed from the
// journal: the call returns "not-executed", so resume must not execute it later.
async function unsettled(c, entry, turn, all) {
  let { execution, error } = all;
  try {
    if (execution === notExecuted && !await inTime(c.journal.remove(entry.name, entry.key, turn))) execution = mayHave;
    if (execution === executed) await inTime(c.journal.mark(entry.name, entry.key, executed));
  } catch (failure) {
    error ??= failure;
    if (execution === notExecuted) execution = mayHave;
    c.tell({ operation: entry.named ? entry.name : undefined, error: failure });
  }
  return answerOf(c, entry, { ...all, execution, error });
}

// answerOf returns the answer of a call.
function answerOf(c, entry, { execution, reason, settled = false, answer, resolution, attempts: made = 0, error }) {
  const { status, statusText, headers, body } = answer ?? {};
  const empty = status === 204 || status === 205 || status === 304;
  return {
    operation: entry.name, execution, settled, reason, replayed: resolution?.replayed ?? false, problem: resolution?.problem ?? null,
    response: answer ? new Response(empty ? null : body, { status, statusText, headers }) : null,
    attempts: made, retryAfter: settled ? 0 : resolution?.after ?? 0, error: error ?? null,
    told: async () => { if (settled) await inTime(c.journal.told(entry.name, entry.key)); },
  };
}

async function resume(c, signal) {
  const entries = await untold(c);
  const answers = new Array(entries.length);
  let next = 0;
  const work = async () => {
    while (next < entries.length) {
      const at = next++, entry = entries[at];
      answers[at] = await alone(c, { ...entry, turn: 'resumed' }, signal, () => further(c, entry, { secrets: [], signal, wait: c.wait }));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, work));
  return answers.filter((answer) => answer !== undefined); // another tab has ended the others
}

async function forget(c, operation, unsettled) {
  checkName(operation);
  const gone = await alone(c, { name: operation, named: true }, undefined, async () => {
    const entry = (await inTime(c.journal.list())).find(({ name }) => name === operation);
    if (entry === undefined) return true;
    if (entry.answer === null && !unsettled) throw new Error(`stet: the operation has no outcome, and may have been executed: resume it, or forget it with { unsettled: true }`);
    return inTime(c.journal.remove(entry.name, entry.key));
  });
  if (gone !== true) throw gone.error;
}
