// kafkajs, and clients with its interface: an eachMessage that runs once for each message.

import { operation } from './operation.js';
import { OperationError } from './operationerror.js';

const again = 1000; // milliseconds until a message is tried again whose operation is in flight
const final = new Set(['operation-failed', 'mismatch', 'result-expired', 'result-unreadable']);
const place = ({ topic, partition, message }) => `${topic}/${partition}/${message.offset}`;

/** Returns a function that protects handlers: consumer.run({ eachMessage: once(async ({ message }, client) => …) }). */
export function idempotency({ pool, scope, key = place, failed, ...options }) {
  if (typeof scope !== 'string') throw new TypeError('stet: the option scope is required: the ID of the consumer group, because each group runs each message');
  return function once(handler) {
    if (typeof handler !== 'function') throw new TypeError('stet: a handler is needed: async ({ topic, partition, message }, client) => …');
    return async function eachMessage(received) {
      const of = { name: received.topic, ...options, scope, key: key(received), payload: received.message.value ?? undefined };
      for (;;) {
        try {
          return void await operation(pool, of, ({ client }) => handler(received, client));
        } catch (error) {
          if (!(error instanceof OperationError)) throw error;
          if (final.has(error.reason) && failed !== undefined) return void await failed(error, received);
          if (error.reason !== 'in-flight') throw error;
          await new Promise((resolve) => setTimeout(resolve, again));
          await received.heartbeat?.(); // throws if the group has given the partition to another consumer
        }
      }
    };
  };
}
