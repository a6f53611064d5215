import type { ClientBase } from 'pg';
import type { Options, SidecarOptions } from './index.js';

/** A handler that runs once for each key. client is in the transaction of the operation, which is committed before the response is sent. */
export type Handler<R extends Request = Request, C = unknown> = (request: R, client: ClientBase, context: C) => Response | Promise<Response>;

/** Returns a function that protects the handlers of routes. Wrong options are errors here. */
export function idempotency<R extends Request = Request>(options: Options<R> | SidecarOptions): <C = unknown>(handler: Handler<R, C>) => (request: R, context: C) => Promise<Response>;
