// The client of a handler: its connection, without the ways to end the transaction.

import { explained } from './errors.js';

const control = /^(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b/i;
// The whole text, with nothing behind it that would be lost, and no mode that a savepoint does not have.
const space = String.raw`(?:\s|--[^\n\r]*(?:[\n\r]|$)|/\*(?:[^*]|\*(?!/))*\*/)`;
const plain = new RegExp(String.raw`^${space}*(?:START\s+TRANSACTION|(?:BEGIN|COMMIT|END|ABORT|ROLLBACK)(?:\s+(?:WORK|TRANSACTION))?)` +
  String.raw`(?:\s+ISOLATION\s+LEVEL\s+READ\s+COMMITTED)?(?:\s+READ\s+WRITE)?${space}*;?${space}*$`, 'i');

// start is the text from its first word on, without blanks, empty statements and comments, which nest.
function start(text) {
  let depth = 0;
  for (let i = 0; i < text.length;) {
    if (text.startsWith('/*', i)) [depth, i] = [depth + 1, i + 2];
    else if (depth > 0) [depth, i] = text.startsWith('*/', i) ? [depth - 1, i + 2] : [depth, i + 1];
    else if (text.startsWith('--', i)) i += /^[^\n\r]*/.exec(text.slice(i))[0].length;
    else if (/[\s;]/.test(text[i])) i++;
    else return text.slice(i);
  }
  return '';
}

// nested replaces a statement that begins or ends a transaction inside the handler's, as query builders send it: the
// replacement does so with a savepoint. It is undefined for other statements.
function nested(tx, verb, text) {
  const savepoint = (n) => `stet_savepoint_${n}`;
  if (!plain.test(text)) return undefined;
  if (/^(?:BEGIN|START)/i.test(verb)) return `SAVEPOINT ${savepoint(++tx.depth)}`;
  if (tx.depth === 0) return undefined;
  const of = savepoint(tx.depth--);
  return /^(?:COMMIT|END)/i.test(verb) ? `RELEASE SAVEPOINT ${of}` : `ROLLBACK TO SAVEPOINT ${of}; RELEASE SAVEPOINT ${of}`;
}

// single has the server refuse a text of several statements, such as SELECT 1; COMMIT.
function single([query, ...rest]) {
  if (typeof query === 'string') return [{ text: query, queryMode: 'extended' }, ...rest];
  if (!query || typeof query.submit === 'function') return [query, ...rest];
  const { text, name, values, rowMode, types } = query; // they may be getters
  return [{ ...query, text, name, values, rowMode, types, queryMode: 'extended' }, ...rest];
}

function refuse(args, message) {
  const error = new Error(`stet: ${message}`);
  const last = args.at(-1);
  if (typeof last === 'function') return void process.nextTick(last, error);
  if (typeof args[0]?.submit === 'function') throw error;
  return Promise.reject(error);
}

function query(tx, args) {
  const text = typeof args[0] === 'string' ? args[0] : args[0]?.text;
  tx.used = true;
  if (!tx.open) {
    tx.options.log('a handler has used its client after its transaction had ended; nothing was written');
    tx.late ??= new Error('stet: the handler has used its client too late after it had ended the response; nothing was committed');
    return refuse(args, 'this transaction has ended; use its client before the response ends');
  }
  const [, verb] = typeof text === 'string' ? control.exec(start(text)) ?? [] : [];
  if (verb === undefined) {
    const sent = tx.connection.query(...(tx.single ? single(args) : args));
    return typeof sent?.catch === 'function' ? sent.catch((error) => { throw explained(tx.options, error); }) : sent;
  }
  const instead = nested(tx, verb, text);
  if (instead === undefined) return refuse(args, 'this transaction is not the handler\'s to end: throw an error to have it rolled back; a transaction inside of it is begun and ended by a plain BEGIN, COMMIT or ROLLBACK');
  return tx.connection.query(instead, ...args.slice(1).filter((arg) => typeof arg === 'function'));
}

/**
 * Returns the connection as the handler sees it. It is not the handler's to end, and is of no
 * use once the transaction has ended: a late write would be in another caller's transaction, or in none.
 */
export function guarded(tx) {
  const own = {
    query: (...args) => query(tx, args),
    release: () => {}, // stet releases the connection; query builders that received it do so, too
    end: (...args) => refuse(args, 'end: the handler must not release this connection'),
    connect: (...args) => refuse(args, 'connect: the handler must not release this connection'),
  };
  return new Proxy(tx.connection, {
    get(connection, name) {
      if (Object.hasOwn(own, name)) return own[name];
      const value = Reflect.get(connection, name, connection);
      return typeof value === 'function' ? value.bind(connection) : value;
    },
  });
}
