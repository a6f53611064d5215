// Messages that are stored with the outcome.

const emitting = new WeakMap(); // what emits, by the client that a handler has

/** Lets a handler emit by its client. */
export function lets(client, run) {
  emitting.set(client, run);
}

const known = new Set(['to', 'key', 'header', 'body']);

/**
 * Adds a message to the outcome of the operation: the commit of the response stores it, and it is sent after that, at least
 * once, and never without the commit. client is the handler's client. It resolves to the message's ID.
 */
export async function emit(client, message) {
  const run = emitting.get(client);
  if (run === undefined) throw new TypeError('stet: emit needs the client that a protected handler is given');
  for (const name of Object.keys(message ?? {})) if (!known.has(name)) throw new TypeError(`stet: a message has no ${name}; it has to, key, header and body`);
  const { to, key = null, header = {}, body } = message ?? {};
  if (typeof to !== 'string') throw new TypeError('stet: a message needs to, a string that says where it goes');
  const [bytes, type] = content(body);
  const fields = { ...header };
  if (type !== undefined && !Object.keys(fields).some((name) => name.toLowerCase() === 'content-type')) fields['content-type'] = type;
  return run([to, bytes, key, JSON.stringify(fields)]);
}

// content is a body's bytes and its media type: bytes as they are, text, or else JSON.
function content(body) {
  if (body === undefined) return [null, undefined];
  if (body instanceof Uint8Array) return [Buffer.from(body.buffer, body.byteOffset, body.byteLength), undefined];
  if (typeof body === 'string') return [Buffer.from(body), 'text/plain; charset=utf-8'];
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError('stet: the body of a message is neither bytes nor text, and not to be written as JSON');
  return [Buffer.from(text), 'application/json'];
}
