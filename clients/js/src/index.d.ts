/** Brings a body into the form that goes into a fingerprint. mediaType is in lower case, '' if there is none. */
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
  /** Where it goes: a topic, a subject, a routing key. 1 to 1024 bytes without control characters. */
  to: string;
  /** The ordering key, for brokers that have one. */
  key?: string;
  /** Goes along with it. content-type is text/plain; charset=utf-8 for text and application/json for JSON, if it is not here. */
  header?: Record<string, string>;
  /** Bytes, text, or anything else that JSON.stringify takes. Default: none. */
  body?: unknown;
}

/**
 * Adds a message to the outcome of a protected handler's operation: it is stored by the commit of the response, sent after
 * that, at least once, and never without it. client is the one that the handler was given. It resolves to the message's
 * ID, and rejects what is not acceptable; PostgreSQL commits nothing after that.
 */
export function emit(client: object, message: Message): Promise<string>;

/** What both idempotency functions take. */
interface Common {
  /** The Pool of pg whose transactions have the business writes and the outcomes. */
  pool: { connect(): Promise<any> };
  /** The greatest request body in bytes. Default 1 MiB. */
  maxBody?: number;
  /** The greatest response that is stored, in bytes; a larger one leaves a tombstone. Default 1 MiB; at most 64 MiB. */
  maxResult?: number;
  /** Reports whether a response rolls the transaction back, and is not stored. Default: 500 and above, 401, 403, 407, 408, 425 and 429. */
  rollsBack?: (status: number, header: (name: string) => string | undefined) => boolean;
  /** How long results are stored: an interval of PostgreSQL's. Default '24 hours'. */
  keep?: string;
  /** How long a key refuses to run again. Default 30 days, or keep if that is longer. */
  tombstone?: string | null;
  /** How long a handler may take until its response has ended, in milliseconds; then it is rolled back. Default 30000. */
  timeout?: number;
  /** Roll back, with 500, what a handler answers that never used its client. By default that is logged, once for each operation. */
  requireTransaction?: boolean;
  /** Where 'stet migrate' has put the functions. Default 'stet'. */
  schema?: string;
  /** As of 'stet migrate --table'. Default 'records'. */
  table?: string;
  /** What the types of problems begin with. */
  problemBase?: string;
  /** Gets what goes wrong: never a key or a body. Default: console.error. */
  log?: (message: string, error?: string) => void;
}

/** Options of a service that begins its operations by itself. */
export interface Options<Request> extends Common {
  sidecar?: false;
  /** Whose key it is, as authentication has established it: a tenant, an account. '' refuses the request with 403; 1 to 1024 bytes. */
  scope: (request: Request) => string | undefined | Promise<string | undefined>;
  /** The request header that carries the key. Default 'Idempotency-Key'. */
  header?: string;
  /** That of stet.Options, if a Go service shares the keys. Default ''. */
  namespace?: string;
  /** What operators read of an operation. Default ''. */
  class?: string;
  /** What the operation is called. Default: the method and the path of the route. */
  name?: (request: Request) => string;
  /** The service's own reference, such as an order's ID. Default: none. */
  ref?: (request: Request) => string;
  /** Default: the bytes as they were sent. canonicalJSON makes one. */
  canonicalize?: Canonicalize;
}

/** Options of a service behind 'stet proxy', on a route with 'settles: service'. Scope, key and what counts as the same request are said in stet.yaml. */
export interface SidecarOptions extends Common {
  sidecar: true;
}
