import type { ClientBase, Pool } from 'pg';
import type { OperationError, OperationOptions } from './index.js';

/** The argument of eachMessage, as far as stet reads it. */
export interface Received {
  topic: string;
  partition: number;
  message: { offset: string; key?: Buffer | null; value: Buffer | null; headers?: Record<string, any> };
  heartbeat?: () => Promise<void>;
}

/** Options of a consumer's operations. The payload is the message's value, the name its topic. */
export interface Options<R extends Received = Received> extends Omit<OperationOptions, 'scope' | 'key' | 'payload'> {
  pool: Pool;
  /** The ID of the consumer group. */
  scope: string;
  /** The key of a message. Default: topic, partition and offset, which a topic that is created again repeats. */
  key?: (received: R) => string;
  /**
   * Called for a message that can never succeed: a PermanentError, another value under the same key, a discarded result. The message is then
   * acknowledged. Send it to a dead-letter topic here. Default: the error is thrown, and the consumer does not continue.
   */
  failed?: (error: OperationError, received: R) => unknown;
}

/** Returns a function that protects handlers. It waits while another process runs the same message. Other errors are those of the handler, after the rollback. */
export function idempotency<R extends Received = Received>(options: Options<R>): (handler: (received: R, client: ClientBase) => unknown) => (received: R) => Promise<void>;
