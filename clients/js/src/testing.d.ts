/** A request without a key. The method is POST by default, and Content-Type is application/json. */
export interface Request {
  path: string;
  body?: string | Uint8Array;
  method?: string;
  headers?: Record<string, string>;
}

export interface Check {
  /** Returns the command of a service that listens on this port of 127.0.0.1. Its state must survive in files or a database. */
  start: (port: number) => string[];
  /** Returns the request of operation n. */
  request: (n: number) => Request;
  /** Returns the number of effects of operation n, for example rows. */
  effects: (n: number) => number | Promise<number>;
  /** The header of the key. Default: Idempotency-Key. */
  header?: string;
  /** The time in ms after which an operation without a final response is reported. In lease mode it must be longer than the lease. Default: 120,000. */
  patience?: number;
}

/**
 * Starts the service, repeats requests, sends duplicates at the same time, disconnects, and kills the process group with SIGKILL when
 * an effect is visible, after a response, and in between. Rejects with an Error that lists each duplicate effect and each changed response.
 */
export function check(options: Check): Promise<void>;
