// Journals. A journal stores an operation before its first byte is sent, until the page confirms its outcome (told).

import { mint } from './client/request.js';
import { sleep } from './client/send.js';

/** The journal stores no more operations. */
export class JournalFull extends Error {
  name = 'JournalFull';
}

const defaults = { maxEntries: 1000, maxBytes: 16 << 20, keep: 24 * 3600_000 };

function limitsOf({ maxEntries = defaults.maxEntries, maxBytes = defaults.maxBytes, keep = defaults.keep }) {
  for (const [name, value] of Object.entries({ maxEntries, maxBytes, keep })) {
    if (!(Number.isInteger(value) && value > 0)) throw new TypeError(`stet: the option ${name} must be a whole number above 0, and is ${value}`);
  }
  return { maxEntries, maxBytes, keep };
}

/**
 * A journal over a store: change(fn) calls fn with a transaction { get, put, delete, heads }, and is
 * durable when it resolves. heads are the entries without their bodies.
 */
class Journal {
  constructor(store, exclusive, limits) {
    Object.assign(this, { store, exclusive, limits });
  }

  /** Stores an entry. If the journal has one with its name, that one is returned. */
  add(entry) {
    return this.store.change(async (t) => {
      const was = await t.get(entry.name);
      if (was !== undefined && !this.#over(was)) return was;
      let entries = 0, bytes = entry.body.length;
      for (const head of await t.heads()) {
        if (this.#over(head)) await t.delete(head.name);
        else { entries++; bytes += head.size; }
      }
      if (entries >= this.limits.maxEntries || bytes > this.limits.maxBytes) {
        throw new JournalFull(`stet: the journal has ${entries} operations; remove operations whose outcome was shown: answer.told(), client.forget()`);
      }
      await t.put({ ...entry, size: entry.body.length });
      return entry;
    });
  }

  // over: its outcome was confirmed, longer ago than the option keep.
  #over(entry) {
    return entry.told !== null && Math.abs(Date.now() - entry.told) > this.limits.keep;
  }

  /** Begins another turn at sending an entry, and returns it; undefined if there is none of that key. */
  begin(name, key, turn) {
    return this.store.change(async (t) => {
      const entry = await t.get(name);
      if (entry === undefined || entry.key !== key) return undefined;
      if (entry.answer === null) await t.put({ ...entry, turn });
      return entry;
    });
  }

  /** Stores that an entry without an answer was executed. */
  mark(name, key, execution) {
    return this.store.change(async (t) => {
      const entry = await t.get(name);
      if (entry?.key === key && entry.answer === null) await t.put({ ...entry, execution });
    });
  }

  /** Stores the answer of an entry, unless it has one, and discards the body of the request. */
  settle(name, key, answer) {
    return this.store.change(async (t) => {
      const entry = await t.get(name);
      if (entry === undefined || entry.key !== key) throw new Error('stet: the journal does not have this operation any more');
      if (entry.answer !== null) return;
      let bytes = answer.body?.length ?? 0;
      for (const head of await t.heads()) if (head.name !== name) bytes += head.size;
      const kept = bytes > this.limits.maxBytes ? { ...answer, body: null } : answer;
      await t.put({ ...entry, answer: kept, execution: answer.execution, body: new Uint8Array(0), size: kept.body?.length ?? 0 });
    });
  }

  /** Stores that the page has confirmed the outcome. A named entry is retained for the option keep; another one is removed. */
  told(name, key) {
    return this.store.change(async (t) => {
      const entry = await t.get(name);
      if (entry?.key !== key || entry.answer === null) return;
      if (entry.named) await t.put({ ...entry, told: Date.now() });
      else await t.delete(name);
    });
  }

  /** Removes an entry that no other turn has begun to send; with no turn, any. False if it is still there. */
  remove(name, key, turn) {
    return this.store.change(async (t) => {
      const entry = await t.get(name);
      if (entry === undefined || entry.key !== key) return true;
      if (turn !== undefined && (entry.turn !== turn || entry.answer !== null)) return false;
      await t.delete(name);
      return true;
    });
  }

  /** All entries, oldest first, without their bodies. */
  async list() {
    const heads = await this.store.change((t) => t.heads(), 'readonly');
    return heads.filter((head) => !this.#over(head)).sort((a, b) => a.created - b.created);
  }
}

/** A journal that ends with the process or the page: for Node, and for tests. */
export function memoryJournal(options = {}) {
  const entries = new Map();
  const turns = new Map();
  const t = {
    get: (name) => entries.get(name),
    put: (entry) => void entries.set(entry.name, entry),
    delete: (name) => void entries.delete(name),
    heads: () => [...entries.values()].map(headOf),
  };
  return new Journal({ change: (fn) => inTurn(turns, '', () => fn(t)) }, (name, signal, fn) => inTurn(turns, `/${name}`, fn, signal), limitsOf(options));
}

const headOf = ({ body, answer, ...head }) => ({ ...head, answer: answer && { ...answer, body: null } });

// inTurn calls fn after the earlier calls of this name, unless signal ends first.
async function inTurn(turns, name, fn, signal) {
  const before = turns.get(name);
  let leave;
  const both = Promise.all([before, new Promise((resolve) => (leave = resolve))]);
  turns.set(name, both);
  void both.then(() => turns.get(name) === both && turns.delete(name));
  try {
    signal?.throwIfAborted();
    await Promise.race([before, aborted(signal)]);
    return await fn();
  } finally {
    leave();
  }
}

function aborted(signal) {
  return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason), { once: true }));
}

/**
 * A journal in IndexedDB, which survives the page, and is shared by the tabs of its origin: one for
 * each user, by name.
 */
export function indexedDBJournal({ name = 'stet', ...options } = {}) {
  if (globalThis.indexedDB === undefined) throw new TypeError('stet: there is no IndexedDB here; memoryJournal() makes a journal that ends with the process');
  if (typeof name !== 'string' || name === '') throw new TypeError('stet: the option name must be a text');
  const database = new Database(name);
  return new Journal(database, (entry, signal, fn) => database.exclusive(entry, signal, fn), limitsOf(options));
}

const lease = 5000; // milliseconds that other tabs wait for a killed one, if there are no Web Locks

class Database {
  #name;
  #open;

  constructor(name) {
    this.#name = name;
  }

  #database() {
    this.#open ??= new Promise((resolve, reject) => {
      const request = indexedDB.open(this.#name, 1);
      request.onupgradeneeded = () => {
        for (const store of ['entries', 'bodies', 'leases']) request.result.createObjectStore(store, { keyPath: 'name' });
      };
      request.onsuccess = () => {
        const db = request.result;
        db.onversionchange = () => { db.close(); this.#open = undefined; };
        db.onclose = () => { this.#open = undefined; };
        resolve(db);
      };
      request.onerror = () => reject(request.error);
    });
    this.#open.catch(() => { this.#open = undefined; });
    return this.#open;
  }

  /** Calls fn in a transaction, and resolves when that is on the disk. */
  async #transact(stores, mode, fn) {
    const db = await this.#database();
    return new Promise((resolve, reject) => {
      const tx = db.transaction(stores, mode, { durability: 'strict' });
      let result, failure;
      tx.oncomplete = () => resolve(result);
      tx.onabort = () => reject(failure ?? tx.error ?? new Error('stet: IndexedDB has aborted a transaction'));
      fn(...stores.map((store) => tx.objectStore(store))).then((value) => (result = value), (error) => {
        failure = error;
        try { tx.abort(); } catch { reject(error); } // it has ended already
      });
    });
  }

  change(fn, mode = 'readwrite') {
    return this.#transact(['entries', 'bodies'], mode, (entries, bodies) => Promise.resolve(fn({
      get: async (name) => {
        const [head, rest] = await Promise.all([done(entries.get(name)), done(bodies.get(name))]);
        return head && { ...head, body: rest.body, answer: head.answer && { ...head.answer, body: rest.answer } };
      },
      put: (entry) => Promise.all([
        done(entries.put(headOf(entry))),
        done(bodies.put({ name: entry.name, body: entry.body, answer: entry.answer?.body ?? null })),
      ]),
      delete: (name) => Promise.all([done(entries.delete(name)), done(bodies.delete(name))]),
      heads: () => done(entries.getAll()),
    })));
  }

  /** Calls fn while no other tab sends the entry. */
  exclusive(entry, signal, fn) {
    const locks = globalThis.navigator?.locks;
    if (locks) return locks.request(`stet/${this.#name}/${entry}`, { signal }, fn);
    return this.#leased(entry, signal, fn); // a page without TLS
  }

  // The lease is no guarantee: a suspended tab can lose it. Then two tabs send, with one key.
  async #leased(name, signal, fn) {
    const holder = mint();
    const hold = (taking) => this.#transact(['leases'], 'readwrite', async (leases) => {
      const now = Date.now(), was = await done(leases.get(name));
      if (was !== undefined && was.holder !== holder && (!taking || Math.abs(was.until - now) <= lease && was.until > now)) return false;
      for (const left of taking ? await done(leases.getAll()) : []) {
        if (left.until < now) await done(leases.delete(left.name)); // of a page that was killed
      }
      await done(leases.put({ name, holder, until: now + lease }));
      return true;
    });
    while (!await hold(true)) {
      await sleep(100 + Math.random() * 200, signal);
      signal?.throwIfAborted();
    }
    const beat = setInterval(() => void hold(false).catch(() => {}), lease / 5);
    try {
      signal?.throwIfAborted();
      return await fn();
    } finally {
      clearInterval(beat);
      await this.#transact(['leases'], 'readwrite', async (leases) => {
        if ((await done(leases.get(name)))?.holder === holder) await done(leases.delete(name));
      }).catch(() => {}); // it ends by itself
    }
  }
}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
