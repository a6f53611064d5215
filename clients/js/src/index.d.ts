import type { ClientBase, Pool } from 'pg';

/** Returns the form of a body that goes into the fingerprint. mediaType is in lower case, '' if there is none. */
export type Canonicalize = (mediaType: string, body: Buffer) => Buffer;

/**
 * Returns a function that brings JSON bodies into canonical form: that of Go's package canonical.
 * Number literals stay as they are. The values that the JSON pointers name are left out.
 */
export function canonicalJSON(...exclude: string[]): Canonicalize;

/** The fingerprint of some parts: stet.NewFingerprint of Go, and stet_fingerprint of SQL; version 2 is that of canonical bodies. */
export function fingerprint(parts: Array<string | Uint8Array>, version?: 1 | 2): Buffer;

/** A request, as it was sent. */
export interface SentRequest {
  method: string;
  target: string;
  /** The values of each field, by its name in lower case: IncomingMessage.headersDistinct. */
  headers: Record<string, string[] | undefined>;
  body: Buffer;
}

/** The fingerprint of a request, as stethttp makes it. */
export function requestFingerprint(request: SentRequest, canonicalize?: Canonicalize): Buffer;

/** A message that is sent after the outcome is stored. */
export interface Message {
  /** The topic, subject or routing key. 1 to 1024 bytes without control characters. */
  to: string;
  /** The ordering key, for brokers that have one. */
  key?: string;
  /** Header fields. content-type is text/plain; charset=utf-8 for text and application/json for JSON, if it is not here. */
  header?: Record<string, string>;
  /** Bytes, text, or anything else that JSON.stringify takes. Default: none. */
  body?: unknown;
}

/**
 * Adds a message to the outcome of a protected handler's operation: the commit of the response stores it, and it is sent
 * after that, at least once, and never without the commit. client is the handler's client. It resolves to the message's
 * ID, and rejects an invalid message; PostgreSQL commits nothing after that.
 */
export function emit(client: object, message: Message): Promise<string>;

/** The part of a Client, PoolClient or Pool of pg that this package uses. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<any>;
}

/** Which tables are migrated, and whom they are granted to. */
export interface MigrationOptions {
  /** The schema of the tables. It is created if it does not exist. Default 'stet'. */
  schema?: string;
  /** The table of records, and the prefix of other names. Default 'records'. */
  table?: string;
  /** The role of the service, which gets the rights that it needs. It must exist. Default: none. */
  role?: string;
  /** The mode of the service (Options.mode). Default 'functions'. */
  mode?: 'functions' | 'statements';
  /** Whether the service emits messages, which needs two more functions. Default false. */
  messages?: boolean;
}

/**
 * Brings the tables and functions up to the version of this package, in one transaction, and grants the rights of a service. It
 * needs a role with CREATE on the database, or on the schema if that exists. Several processes may call it at a time. Its record of versions is that of
 * 'stet migrate' of Go. It resolves to the version before and after, and rejects tables of a newer version.
 *
 * If a Client has a transaction open, everything is in that one, and the caller commits it. Behind a long reader of the
 * tables, it tries again for 3 minutes; in the caller's transaction it rejects after 2 seconds.
 */
export function migrate(client: Queryable, options?: MigrationOptions): Promise<{ from: number; version: number }>;

/** Resolves to the steps, and since when each is applied. It changes nothing. */
export function migrationStatus(client: Queryable, options?: Pick<MigrationOptions, 'schema' | 'table'>): Promise<Array<{ step: number; name: string; state: 'applied' | 'pending'; appliedAt: Date | undefined }>>;

/** The steps in order. Execute lock and then up in one transaction. up has several statements, and records its version. */
export function migrations(options?: Pick<MigrationOptions, 'schema' | 'table'>): Array<{ version: number; name: string; lock: string; up: string }>;

/** The steps and the grants as one script. transaction: false leaves out BEGIN and COMMIT, for a migrator that has its own transaction. Default true. */
export function migrationSQL(options?: MigrationOptions & { transaction?: boolean }): string;

/** One operation, and how its result is stored. */
export interface OperationOptions {
  /** The owner of the key, such as a tenant. 1 to 1024 bytes. */
  scope: string;
  /** The key, which is the same for each retry. 1 to 1024 bytes. */
  key: string;
  /**
   * The content of the request. The same key with another payload is a mismatch. Text and bytes are compared exactly, other values as
   * canonical JSON. Default: none, which matches only calls without a payload.
   */
  payload?: unknown;
  /** The name and the reference that operators see. At most 255 bytes each. Default ''. */
  name?: string;
  ref?: string;
  /** How long fn may run, in milliseconds; then it is rolled back. Default 30000. */
  timeout?: number;
  namespace?: Options<unknown>['namespace'];
  previous?: Options<unknown>['previous'];
  claimPrevious?: Options<unknown>['claimPrevious'];
  class?: Options<unknown>['class'];
  mode?: Options<unknown>['mode'];
  keep?: Options<unknown>['keep'];
  tombstone?: Options<unknown>['tombstone'];
  maxResult?: Options<unknown>['maxResult'];
  schema?: Options<unknown>['schema'];
  table?: Options<unknown>['table'];
  log?: Options<unknown>['log'];
}

/** The argument of a function that runs as an operation. client is in the transaction that stores the result. */
export interface Operation {
  client: ClientBase;
  scope: string;
  key: string;
}

/** A value as JSON.parse returns it: a Date is a string. */
export type Stored<T> = unknown extends T ? T
  : T extends { toJSON(): infer J } ? Stored<J>
  : T extends string | number | boolean | null | undefined | void ? T
  : T extends bigint | symbol | ((...args: any[]) => unknown) ? never
  : { [K in keyof T]: Stored<T[K]> };

/**
 * Runs fn once for a scope and a key. One commit has the writes of op.client and the result. Every later call resolves to that
 * result, as JSON.parse returns it, also in another process. The first call resolves to the same.
 *
 * If fn throws, its writes are undone, the error is thrown, and a later call runs again. A PermanentError is stored: later calls
 * throw an OperationError with its message. Other OperationErrors have no value to return; see reason.
 *
 * client is a Pool, or a Client without an open transaction, which runs one operation at a time. After a timeout that Client is ended.
 */
export function operation<T>(client: Pool | ClientBase, options: OperationOptions, fn: (op: Operation) => T | Promise<T>): Promise<{ value: Stored<T>; replayed: boolean }>;

/** Why an operation has no value to return. */
export class OperationError extends Error {
  /**
   * 'in-flight': another call runs. 'mismatch': the key has another payload. 'operation-failed': a stored failure. 'result-expired': it was
   * executed, and the result is discarded. 'outcome-unknown': call again with the same key. 'store-unavailable', 'misconfigured', 'response-missing' (the timeout), 'result-unreadable'.
   */
  reason: string;
  execution: 'executed' | 'not executed' | 'may have executed';
  /** Whether a later call with the same key can have another result. */
  retryable: boolean;
  /** As of the PermanentError. */
  details: unknown;
}

/** A failure to store: the writes are undone, and no later call runs. details must be a value for JSON. Its message is stored, and must have no secret. */
export class PermanentError extends Error {
  constructor(message: string, options?: { details?: unknown; cause?: unknown });
  details: unknown;
}

/** Options of all idempotency functions. */
interface Common {
  /** The Pool of pg whose transactions have the business writes and the outcomes. */
  pool: { connect(): Promise<any> };
  /** The maximum size of a request body, in bytes. Default 1 MiB. */
  maxBody?: number;
  /** The maximum size of a stored response, in bytes. Of a larger one, only the execution is stored. Default 1 MiB; at most 64 MiB. */
  maxResult?: number;
  /** Reports whether a response rolls the transaction back, and is not stored. Default: 500 and above, 401, 403, 407, 408, 425 and 429. */
  rollsBack?: (status: number, header: (name: string) => string | undefined) => boolean;
  /** How long results are stored: an interval of PostgreSQL's. Default '24 hours'. */
  keep?: string;
  /** How long the key is stored and prevents a second run. Default 30 days, or keep if that is longer. */
  tombstone?: string | null;
  /** How long a handler may take until its response has ended, in milliseconds; then it is rolled back. Default 30000. */
  timeout?: number;
  /** If a handler did not use its client, roll back and respond with 500. By default that is logged, once for each operation. */
  requireTransaction?: boolean;
  /** The schema in which 'stet migrate' created the functions. Default 'stet'. */
  schema?: string;
  /** As of 'stet migrate --table'. Default 'records'. */
  table?: string;
  /** The prefix of the type of each problem. */
  problemBase?: string;
  /** Receives errors, without keys and bodies. Default: console.error. */
  log?: (message: string, error?: string) => void;
}

/** Options of a service that begins its operations by itself. */
export interface Options<Request> extends Common {
  sidecar?: false;
  /** The authenticated tenant or account that owns the key, 1 to 1024 bytes. '' refuses the request with 403. */
  scope: (request: Request) => string | undefined | Promise<string | undefined>;
  /** The request header that carries the key. Default 'Idempotency-Key'. */
  header?: string;
  /**
   * 'functions' calls the functions of stet. 'statements' reads and inserts the record directly, which costs the server less:
   * the service's role needs INSERT and SELECT on columns of the table (README) and USAGE on its sequence, and can then read all outcomes. Default 'functions'.
   */
  mode?: 'functions' | 'statements';
  /** The Namespace of stet.Options, if a Go service shares the keys. Default ''. */
  namespace?: string;
  /**
   * The namespace that namespace replaces, during a rolling deployment (docs/keys.md). An operation that has a record there has its outcome from
   * there. All processes must have it, with claimPrevious, before the first process unsets claimPrevious. Default: none.
   */
  previous?: string;
  /** Run new operations under the previous namespace, as processes without this option do. Default false. */
  claimPrevious?: boolean;
  /** The class that operators see. Default ''. */
  class?: string;
  /** The name of the operation. Default: the method and the path of the route. */
  name?: (request: Request) => string;
  /** The service's own reference, such as an order's ID. Default: none. */
  ref?: (request: Request) => string;
  /** Default: the bytes as they were sent. canonicalJSON makes one. */
  canonicalize?: Canonicalize;
}

/** Options of a service behind 'stet proxy', on a route with 'settles: service'. Scope, key and fingerprint are configured in stet.yaml. */
export interface SidecarOptions extends Common {
  sidecar: true;
}
