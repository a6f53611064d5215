import type { Context, MiddlewareHandler } from 'hono';
import type { ClientBase } from 'pg';
import type { Options, SidecarOptions } from './index.js';

/** The variables of a protected handler. client is in the transaction of the operation, which is committed before the response is sent. */
export interface Variables {
  client: ClientBase;
}

/** Returns middleware: the handlers after it run once for each key, and get the client by c.get('client'). Wrong options are errors here. */
export function idempotency(options: Options<Context> | SidecarOptions): MiddlewareHandler<{ Variables: Variables }>;
