import type { Job, Processor } from 'bullmq';
import type { ClientBase, Pool } from 'pg';
import type { OperationOptions } from './index.js';

/** Options of a queue's operations. The payload is the job's data, the name that of the job. */
export interface Options extends Omit<OperationOptions, 'scope' | 'key' | 'payload'> {
  pool: Pool;
  /** The key of a job, the same in each attempt and in a job that is added again: a business key, or a job ID of your own. */
  key: (job: Job) => string;
  /** The owner of the key. Default: the name of the queue. */
  scope?: (job: Job) => string;
}

/** A processor that runs once for each key. One commit has the writes of client and the returned value, which JSON must be able to represent. */
export type Handler<T = any> = (job: Job<T>, client: ClientBase) => unknown;

/**
 * Returns a function that protects processors. A job whose operation runs elsewhere is delayed by a second. A PermanentError, another
 * payload under the same key and a discarded result fail the job without more attempts. Other errors are those of the processor, after the rollback.
 */
export function idempotency(options: Options): <T = any>(handler: Handler<T>) => Processor<T>;
