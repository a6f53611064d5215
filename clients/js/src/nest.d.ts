import type { NestInterceptor } from '@nestjs/common';
import type { Options, SidecarOptions } from './index.js';

/**
 * Returns an interceptor for @UseInterceptors: the handler runs once for each key. Its response is committed with the writes of its
 * client, and sent after that. The application needs { rawBody: true }. Wrong options are errors here.
 */
export function idempotency(options: Options<any> | SidecarOptions): NestInterceptor;

/** Decorates the parameter that is the handler's client, a ClientBase of pg in the transaction of the operation. */
export const Client: (...dataOrPipes: any[]) => ParameterDecorator;
