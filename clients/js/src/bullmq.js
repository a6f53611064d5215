// BullMQ: a processor that runs once for each key, also if a job is stalled and taken again.

import { DelayedError, UnrecoverableError } from 'bullmq';
import { operation } from './operation.js';
import { OperationError } from './operationerror.js';

const again = 1000; // milliseconds until a job is tried again whose operation is in flight
const final = new Set(['operation-failed', 'mismatch', 'result-expired', 'result-unreadable']);

/** Returns a function that protects processors: new Worker(queue, once(async (job, client) => …)). */
export function idempotency({ pool, key, scope = (job) => job.queueName, ...options }) {
  if (typeof key !== 'function') throw new TypeError('stet: the option key is required: a function of the job. Job IDs begin again if a queue is removed, so use a business key');
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a processor is needed: async (job, client) => …');
    return async function protectedProcessor(job, token) {
      try {
        const { value } = await operation(pool, { name: job.name, ...options, scope: scope(job), key: key(job), payload: job.data }, ({ client }) => handler(job, client));
        return value;
      } catch (error) {
        if (!(error instanceof OperationError)) throw error;
        if (final.has(error.reason)) throw Object.assign(new UnrecoverableError(error.message), { cause: error });
        if (error.reason !== 'in-flight') throw error;
        await job.moveToDelayed(Date.now() + again, token);
        throw new DelayedError();
      }
    };
  };
}
