// Tools of agents: a function runs once for each key, and the model reads why a call has no result.

import { operation } from './operation.js';
import { OperationError } from './operationerror.js';
import { report } from './options.js';
import { problemBase } from './problem.js';
import { identity } from './record.js';
import { flaw, keyName, problemName, replayedName, textOf } from './toolwords.js';

/** A call without a result. Its message tells a model whether the tool was executed, and what to do. */
export class CallRefused extends OperationError {
  name = 'CallRefused';

  constructor(reason, text, more) {
    super(reason, more);
    this.message = text;
    this.operation = '';
  }

  /** The problem, for programs. */
  get meta() { return problem(this.reason, this); }
}

const problem = (reason, { retryable, execution, operation }) => ({ type: problemBase + reason, retryable, execution, ...(operation && { operation }) });
const not = 'not executed';
const refusal = (reason, { text = reason, cause, ...words } = {}) => new CallRefused(reason, textOf(text, not, words), { execution: not, cause });
const content = (...texts) => texts.map((text) => ({ type: 'text', text }));

/** Returns a function that protects tools: tool('pay', async ({ order }, { client }) => …, { key: ({ order }) => order }). */
export function tools({ pool, scope, ...options }) {
  if (typeof scope !== 'string' && typeof scope !== 'function') throw new TypeError('stet: the option scope is required: the owner of the keys, or a function that returns it');
  const log = options.log ?? report;

  async function owner(call) {
    let found = scope;
    try {
      if (typeof scope === 'function') found = await scope(call);
    } catch (cause) {
      log('the scope function failed; nothing was executed', cause?.message);
      throw refusal('scope-failed', { cause });
    }
    if (typeof found !== 'string' || found === '') throw refusal('scope-missing');
    return found;
  }

  return function tool(name, handler, { key: business } = {}) {
    if (typeof name !== 'string' || typeof handler !== 'function') throw new TypeError("stet: a tool needs a name and a function: tool('pay', async (args, { client }) => …)");

    // named is the key of the operation: of the tool and its business key, or that of the host.
    async function named(args, key, overMCP) {
      let found;
      if (business !== undefined) {
        try {
          found = await business(args) ?? undefined;
          if (found !== undefined && (typeof found !== 'string' || found === '' || Buffer.byteLength(found) > 512)) throw new TypeError('a business key is text of 1 to 512 bytes');
        } catch (cause) {
          log('the key function of a tool failed; nothing was executed', cause?.message);
          throw refusal('key-invalid', { text: 'no-business-key', cause });
        }
      }
      if (found !== undefined) return `${name} ${found}`;
      if (key === undefined) throw refusal('key-missing', { text: overMCP ? 'key-missing' : 'no-key' });
      const why = flaw(key);
      if (why !== '') throw refusal('key-invalid', { why });
      return key;
    }

    async function run(args, { key, overMCP = false, call } = {}) {
      const of = { scope: '', key: '' };
      const execute = async (op) => {
        try {
          return await handler(args, op);
        } catch (error) { // of another operation: its state is not that of this call
          throw error instanceof OperationError ? new Error(error.message, { cause: error }) : error;
        }
      };
      try {
        of.key = await named(args, key, overMCP);
        of.scope = await owner(call);
        return await operation(pool, { name, ...options, ...of, payload: { tool: name, arguments: args } }, execute);
      } catch (error) {
        if (!(error instanceof OperationError)) throw error;
        const { reason, execution, details } = error;
        const failed = reason === 'operation-failed' && execution === not; // a PermanentError: its message is for the model
        const text = failed ? error.message.slice('stet: '.length) : textOf(reason, execution, { keyed: overMCP && key !== undefined });
        const refused = error instanceof CallRefused ? error : new CallRefused(reason, text, { execution, details, cause: error });
        if (of.scope !== '') refused.operation = idOf(options, of);
        throw refused;
      }
    }

    const protectedTool = async (args, call = {}) => (await run(args, { key: call.key, call })).value;
    /** The callback of a server of @modelcontextprotocol/sdk. Without an inputSchema the server passes extra alone. */
    protectedTool.mcp = async (...given) => {
      const extra = given.at(-1), key = extra?._meta?.[keyName];
      try {
        const { value, replayed } = await run(given.length > 1 ? given[0] : {}, { key, overMCP: true, call: extra });
        const text = value === undefined ? 'Done. It has no result.' : typeof value === 'string' ? value : JSON.stringify(value);
        const structured = value !== null && typeof value === 'object' && !Array.isArray(value);
        return { content: content(text), ...(structured && { structuredContent: value }), ...(replayed && { _meta: { [replayedName]: true } }) };
      } catch (error) {
        if (error instanceof CallRefused) return { isError: true, content: content(error.message), _meta: { [problemName]: error.meta } };
        const undone = { retryable: true, execution: not };
        return {
          isError: true, content: content(String(error?.message ?? error), textOf('not-executed', not, { keyed: key !== undefined })),
          _meta: { [problemName]: problem('not-executed', undone) },
        };
      }
    };
    return protectedTool;
  };
}

// idOf is the ID of an operation, as operators see it.
function idOf({ schema = 'stet', table = 'records', namespace = '', previous, claimPrevious }, of) {
  return identity({ schema, table }, { ...of, fingerprint: Buffer.alloc(33) }, claimPrevious ? previous : namespace).id.toString('hex');
}
