import type { ClientBase, Pool } from 'pg';
import type { Operation, OperationError, OperationOptions, Stored } from './index.js';

/** Options of tools. The payload of an operation is the tool's name and its arguments. */
export interface Options extends Omit<OperationOptions, 'scope' | 'key' | 'payload' | 'name'> {
  pool: Pool | ClientBase;
  /** The owner of the keys, or a function that returns it. Its argument is the second one of the call: over MCP the SDK's extra, with authInfo. '' refuses the call. */
  scope: string | ((call: any) => string | Promise<string>);
}

/** What a host knows of a call. */
export interface Call {
  /** The key, if the tool has no business key: 1 to 255 bytes of visible ASCII, such as the ID that the model's API gave the call, if a retry of the host has the same. */
  key?: string;
}

/** Options of one tool. */
export interface ToolOptions<A> {
  /**
   * Returns the business key, text of 1 to 512 bytes. undefined: the key of the host counts. If it throws, the call is refused. Default: none.
   * A call without any key is refused: equal arguments do not make two calls one.
   */
  key?: (args: A) => string | undefined | Promise<string | undefined>;
}

/** A protected tool. It resolves to the stored result, and rejects with CallRefused if there is none. An error of the function is thrown after the rollback. */
export interface Tool<A, T> {
  (args: A, call?: Call): Promise<Stored<T>>;
  /** The callback for registerTool of a McpServer. The host's key is _meta["io.github.stet-go/idempotency-key"], as in contrib/stetmcp and stet proxy. Refusals are results with isError. */
  mcp: (...given: any[]) => Promise<{ content: Array<{ type: 'text'; text: string }>; structuredContent?: Record<string, unknown>; isError?: boolean; _meta?: Record<string, unknown> }>;
}

/** Returns a function that protects tools. Write by op.client: one commit has the writes and the result. A PermanentError is stored, and its message is for the model. */
export function tools(options: Options): <A, T>(name: string, handler: (args: A, op: Operation) => T | Promise<T>, options?: ToolOptions<A>) => Tool<A, T>;

/** A call without a result. Its message tells a model whether the tool was executed, and what to do. */
export class CallRefused extends OperationError {
  /** The ID of the stored operation in hexadecimal digits, '' if there is none. */
  operation: string;
  /** The problem, for programs. */
  get meta(): { type: string; retryable: boolean; execution: string; operation?: string };
}
