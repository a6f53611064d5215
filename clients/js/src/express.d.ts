import type { IncomingMessage, ServerResponse } from 'node:http';
import type { NextFunction, Request, Response } from 'express';
import type { ClientBase } from 'pg';
import type { Options, SidecarOptions } from './index.js';

/**
 * A handler that runs once for each key. client is in the transaction of the operation, which is
 * committed when the response has ended; the response is sent after that.
 */
export type Handler = (req: Request & { rawBody: Buffer }, res: Response, client: ClientBase) => unknown;

/** Returns a function that protects handlers. Wrong options are errors here. */
export function idempotency(options: Options<Request> | SidecarOptions): (handler: Handler) => (req: Request, res: Response, next: NextFunction) => Promise<void>;

/** For express.json({ verify: keepBody }), if that runs before a protected handler. */
export function keepBody(req: IncomingMessage, res: ServerResponse, body: Buffer): void;
