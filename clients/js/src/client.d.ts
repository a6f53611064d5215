/** Whether the operation was executed, from all attempts together. */
export type Execution = 'executed' | 'not-executed' | 'may-have-executed';

/**
 * Why a call ended:
 * - outcome: response is the operation's outcome; every later call returns the same.
 * - gone: the operation was executed, and its response was discarded, or was too large.
 * - refused: the last answer refused the request, such as a 401. An earlier attempt may have executed it.
 * - attempts, time: the policy allows no further attempt.
 * - aborted: the option signal has ended.
 * - wait: it was accepted (202), and has not ended within the option wait. response is the 202.
 * - status: it was accepted, and its status resource does not return the outcome.
 * - busy: another tab has had it in progress for longer than a call takes.
 * - mismatch: the journal has another request, or another key, under this name.
 * - stale: it was begun longer ago than the option maxAge, and is not sent again.
 * - journal, journal-full: the journal could not be written; nothing was sent now.
 */
export type Reason = 'outcome' | 'gone' | 'refused' | 'attempts' | 'time' | 'aborted' | 'wait' | 'status' | 'busy' | 'mismatch' | 'stale' | 'journal' | 'journal-full';

/** The result of a call. */
export interface Answer {
  /** The name of the operation, or its key if it has none: not for logs then. */
  operation: string;
  execution: Execution;
  /** It has an outcome, which does not change. The journal stores it until told is called. */
  settled: boolean;
  reason: Reason;
  /** The outcome, or the last answer, with its body in memory; null without one. */
  response: Response | null;
  /** The response is that of an earlier execution, according to the service or the journal. */
  replayed: boolean;
  /** The problem document (RFC 9457) of the response, or null. */
  problem: Record<string, unknown> | null;
  /** How many this call has made; 0 if the outcome is the journal's. */
  attempts: number;
  /** The wait that the service asked for, in milliseconds; 0 without one. */
  retryAfter: number;
  /** The last error, or null. */
  error: unknown;
  /**
   * Call it when the user has seen the outcome. It removes the entry of an operation without a name. A named entry is
   * retained for the journal's keep. Without an outcome it does nothing.
   */
  told(): Promise<void>;
}

/** The options of fetch that survive a reload, and the operation's own. */
export interface OperationInit {
  /** Any but GET and HEAD. */
  method: string;
  headers?: HeadersInit;
  /** Anything but a stream. It is read once: every attempt sends the same bytes. */
  body?: Exclude<BodyInit, ReadableStream> | null;
  credentials?: RequestCredentials;
  mode?: 'cors' | 'same-origin';
  /** Default follow: a refusal of a redirected request is then no outcome. */
  redirect?: 'follow' | 'error';
  signal?: AbortSignal;
  /**
   * The name of the operation, 1 to 255 characters: checkout-42. All calls with that name, after a reload and in other
   * tabs too, have one key and one outcome. Default: it has no name, and no other call can be the same.
   */
  operation?: string;
  /** The key, 1 to 255 characters of visible ASCII, where the page was given one. Default: a new UUID. */
  key?: string;
  /** How long to wait for the outcome after a 202, in milliseconds; 0: the 202 is the outcome. Default: the client's. */
  wait?: number;
}

/** An operation whose outcome was not confirmed with told. */
export interface Pending {
  /** Its name, or its key if it has none. */
  operation: string;
  method: string;
  url: string;
  created: Date;
  execution: Execution;
  settled: boolean;
}

/** The argument of observe: after each attempt, with each status of an accepted operation, and each error of the journal. */
export interface Event {
  operation?: string;
  attempt?: number;
  status?: number;
  execution?: Execution;
  /** When the next attempt is due, in milliseconds; undefined without one. */
  retryIn?: number;
  progress?: Record<string, unknown>;
  error?: unknown;
}

/** Stores operations. */
export interface Journal {
  readonly limits: Readonly<Required<JournalOptions>>;
}

/** The bounds of a journal. */
export interface JournalOptions {
  /** The maximum number of operations; one more is refused. Default 1000. */
  maxEntries?: number;
  /** The bodies of requests without an outcome and of outcomes, in bytes. Default 16 MiB. */
  maxBytes?: number;
  /** How long a named entry is retained after told, in milliseconds. Default 24 hours. */
  keep?: number;
}

/** Options of a client. Times are in milliseconds. */
export interface Options {
  /** Default: indexedDBJournal(). Node has none: give it memoryJournal(). */
  journal?: Journal;
  /** How many attempts a call makes. Default 8; at most 10000. */
  attempts?: number;
  /** How long after its start a call may begin another attempt. Default 120000; at most a day. */
  elapsed?: number;
  /** The bound of the first wait, random from 0 (full jitter), added to Retry-After. Each further bound is twice as long. Default 200. */
  base?: number;
  /** The maximum bound of a wait. Default 20000. */
  cap?: number;
  /** How long an attempt may take, its answer included. Default 30000. */
  attemptTimeout?: number;
  /** How long a call waits for the outcome after a 202; 0: the 202 is the outcome. Default 120000; at most a day. */
  wait?: number;
  /** The maximum age of an operation that is sent again. It must be shorter than the time for which the service retains keys. Default 23 hours. */
  maxAge?: number;
  /** The maximum size of a request body, in bytes. Default 1 MiB; at most 64 MiB. */
  maxBody?: number;
  /** The maximum size of a response body, in bytes; of a longer one only the execution is stored, and its reason is gone. Default 1 MiB; at most 64 MiB. */
  maxResponse?: number;
  /** The request header that carries the key. Default Idempotency-Key. */
  header?: string;
  /** Send the key without quotes, for services that do not read structured fields (RFC 9651). Default false. */
  raw?: boolean;
  /** The response header that is "true" on replays. Default Idempotent-Replayed. */
  replayedHeader?: string;
  /** Request headers that the journal does not store, besides Authorization, Proxy-Authorization and Cookie. */
  secretHeaders?: string[];
  /** Store them nevertheless, with the three others. Default false. */
  keepSecrets?: boolean;
  /** Returns headers for each request to the origin of an operation, with credentials that the journal does not store. resume calls it, too. */
  authorize?: (request: { operation?: string; method: string; url: string }) => HeadersInit | undefined | Promise<HeadersInit | undefined>;
  observe?: (event: Event) => void;
  /** Default: the global fetch. */
  fetch?: typeof fetch;
}

/** A client. Its calls reject only for wrong arguments (TypeError, RangeError), before anything is sent or stored. */
export interface Client {
  /** Sends a request as one operation, until its outcome is known or the policy ends it. */
  fetch(url: string | URL, init: OperationInit): Promise<Answer>;
  /** The operations whose outcome was not confirmed with told, oldest first. It rejects if the journal cannot be read. */
  pending(): Promise<Pending[]>;
  /** Sends the operations without an outcome again, with their keys, and returns all answers. It rejects if the journal cannot be read. */
  resume(options?: { signal?: AbortSignal }): Promise<Answer[]>;
  /**
   * Removes an operation from the journal. Its name is then free for a new one. An operation without an outcome may have
   * been executed: to remove it is an error unless unsettled is true.
   */
  forget(operation: string, options?: { unsettled?: boolean }): Promise<void>;
}

/** Returns a client. Wrong options are errors here. */
export function createClient(options?: Options): Client;

/** A journal in IndexedDB, of the tabs of this origin. name tells users apart who share a browser. Default stet. */
export function indexedDBJournal(options?: JournalOptions & { name?: string }): Journal;

/** A journal that ends with the page or the process: for Node, and for tests. */
export function memoryJournal(options?: JournalOptions): Journal;
