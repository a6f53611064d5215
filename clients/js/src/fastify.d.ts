import type { FastifyReply, FastifyRequest, preParsingHookHandler, RouteHandlerMethod } from 'fastify';
import type { ClientBase } from 'pg';
import type { Options, SidecarOptions } from './index.js';

/**
 * A handler that runs once for each key. client is in the transaction of the operation, which is
 * committed when the response has ended; the response is sent after that.
 */
export type Handler = (request: FastifyRequest, reply: FastifyReply, client: ClientBase) => unknown;

/** Returns a function that makes the options of a route of a handler. Wrong options are errors here. */
export function idempotency(options: Options<FastifyRequest> | SidecarOptions): (handler: Handler) => { preParsing: preParsingHookHandler; handler: RouteHandlerMethod };
