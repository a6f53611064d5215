import type { Context, Middleware } from 'koa';
import type { ClientBase } from 'pg';
import type { Options, SidecarOptions } from './index.js';

/**
 * A handler that runs once for each key. It writes its response to ctx.body. client is in the transaction of the operation, which is
 * committed when the handler has ended; the response is sent after that.
 */
export type Handler = (ctx: Context & { request: { body?: any; rawBody?: Buffer | string } }, client: ClientBase) => unknown;

/** Returns a function that protects handlers. Wrong options are errors here. */
export function idempotency(options: Options<Context> | SidecarOptions): (handler: Handler) => Middleware;
