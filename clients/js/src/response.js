// The response of a handler: held back until it is committed, stored, and replayed.

/** The largest response that is held back, in bytes. */
export const maxHeld = 16 << 20;
const methods = ['write', 'end', 'writeHead', 'flushHeaders', 'destroy'];
const muted = [...methods, 'setHeader', 'setHeaders', 'appendHeader', 'removeHeader'];

export const destroyed = new Error('stet: the response was destroyed before its end');

/** Holds back the writes to a ServerResponse. ended is resolved when its handler has ended it, and rejected with destroyed if it destroys it. */
export class Capture {
  size = 0;
  chunks = [];
  begun = false;
  over = false;
  finished = false;

  /** before is the header that others had set before the handler was called. */
  constructor(res, before) {
    this.res = res;
    this.before = { ...before };
    this.outer = { headers: { ...res.getHeaders() }, status: res.statusCode };
    this.ended = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.ended.catch(() => {});
    const own = {
      write: (chunk, encoding, done) => this.write(chunk, encoding, done),
      end: (chunk, encoding, done) => this.end(chunk, encoding, done),
      writeHead: (...args) => this.writeHead(...args),
      flushHeaders: () => {},
      destroy: () => this.destroy(),
    };
    // Outer middleware may have replaced these methods.
    this.were = new Map([...methods, 'headersSent', 'writableEnded'].map((name) => [name, Object.getOwnPropertyDescriptor(res, name)]));
    for (const name of methods) Object.defineProperty(res, name, { configurable: true, writable: true, value: own[name] });
    Object.defineProperty(res, 'headersSent', { configurable: true, get: () => this.begun });
    Object.defineProperty(res, 'writableEnded', { configurable: true, get: () => this.finished });
  }

  writeHead(status, ...rest) {
    if (!Number.isInteger(status) || status < 200 || status > 999) throw new RangeError(`stet: the status ${status} is not 200 to 999`);
    const { res } = this;
    if (this.begun) throw new Error('stet: the response has begun already');
    res.statusCode = status;
    if (typeof rest[0] === 'string') res.statusMessage = rest.shift();
    const headers = rest[0];
    if (Array.isArray(headers)) {
      const flat = headers.flat(1);
      for (let i = 0; i < flat.length; i += 2) res.removeHeader(flat[i]);
      for (let i = 0; i < flat.length; i += 2) for (const value of [flat[i + 1]].flat()) res.appendHeader(flat[i], String(value));
    } else {
      for (const [name, value] of Object.entries(headers ?? {})) if (value !== undefined) res.setHeader(name, value);
    }
    this.begun = true;
    return res;
  }

  write(chunk, encoding, done) {
    if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) throw new TypeError('stet: a response is written as strings and bytes');
    if (this.finished) return false;
    if (!this.begun) this.writeHead(this.res.statusCode);
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk);
    this.size += bytes.length;
    if (this.size > maxHeld) {
      this.over = true;
      this.chunks.length = 0;
    } else {
      this.chunks.push(bytes);
    }
    if (typeof done === 'function') process.nextTick(done);
    return true;
  }

  end(chunk, encoding, done) {
    if (typeof chunk === 'function') [chunk, done] = [undefined, chunk];
    if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];
    if (this.finished) return this.res;
    if (chunk !== undefined && chunk !== null) this.write(chunk, encoding);
    else if (!this.begun) this.writeHead(this.res.statusCode);
    if (typeof done === 'function') this.res.once('finish', done);
    this.finished = true;
    this.resolve();
    return this.res;
  }

  // pipeline destroys a response whose source has failed. A client that leaves does not come here.
  destroy() {
    if (!this.finished) this.reject(destroyed);
    this.finished = true;
    return this.res;
  }

  /** The finished response, in its stored form. */
  response() {
    const { res } = this;
    const header = { ...res.getHeaders() };
    delete header[expiresField]; // of another operation
    const bodyless = res.statusCode === 204 || res.statusCode === 304;
    const body = bodyless ? Buffer.alloc(0) : Buffer.concat(this.chunks);
    this.body = body;
    const declared = header['content-length'];
    this.final = { status: res.statusCode, header };
    const cut = !bodyless && res.req.method !== 'HEAD' && declared !== undefined && Number(declared) !== this.size;
    return { status: res.statusCode, headers: stored(header, this.before), contentType: text(header['content-type']) ?? null, body, cut };
  }

  /**
   * Sends the response that the method response has returned. Later changes have no effect. expires is the date until which
   * the key of a stored response is remembered.
   */
  send(expires) {
    const { res, body, final } = this;
    if (expires !== undefined) final.header[expiresField] = expires;
    this.remove();
    if (res.headersSent) return;
    const now = res.getHeaders();
    for (const name of Object.keys(now)) if (!Object.hasOwn(final.header, name)) res.removeHeader(name);
    for (const [name, value] of Object.entries(final.header)) if (now[name] !== value) res.setHeader(name, value);
    res.statusCode = final.status;
    res.end(body.length > 0 ? body : undefined);
  }

  /** Undoes the changes of the handler to the response. Another one can be sent then. */
  retract() {
    this.remove();
    const { res, outer } = this;
    if (res.headersSent) return;
    for (const name of res.getHeaderNames()) res.removeHeader(name);
    for (const [name, value] of Object.entries(outer.headers)) res.setHeader(name, value);
    res.statusCode = outer.status;
    res.statusMessage = undefined;
  }

  remove() {
    for (const [name, was] of this.were) {
      delete this.res[name];
      if (was !== undefined) Object.defineProperty(this.res, name, was);
    }
    this.were = new Map();
  }
}

/** Prevents a handler that was given up from changing the response that was sent instead. */
export function mute(res) {
  for (const name of muted) Object.defineProperty(res, name, { configurable: true, writable: true, value: () => res });
}

const expiresField = 'idempotency-expires';

/** A date of HTTP, of seconds since 1970; undefined for NaN. */
export const httpDate = (seconds) => (Number.isNaN(seconds) ? undefined : new Date(1000 * Math.floor(seconds)).toUTCString());

const never = new Set([expiresField, 'date', 'connection', 'keep-alive', 'te', 'transfer-encoding', 'upgrade', 'trailer', 'content-length', 'content-type', 'set-cookie',
  'idempotent-replayed', 'preference-applied']);

/**
 * Returns the fields to store: those of the handler, about the outcome and not the connection. Fields that were set before the
 * handler are left out, because they are set again on a replay. A field that the handler removed has no values.
 */
export function stored(header, before) {
  const named = [header.connection ?? []].flat().flatMap((value) => String(value).split(',')).map((name) => name.trim().toLowerCase());
  const keeps = (name) => !never.has(name) && !name.startsWith('proxy-') && !named.includes(name);
  const fields = {};
  for (const [name, value] of Object.entries(header)) {
    const values = list(value);
    if (keeps(name) && JSON.stringify(values) !== JSON.stringify(before[name] === undefined ? undefined : list(before[name]))) fields[name] = values;
  }
  for (const name of Object.keys(before)) if (keeps(name) && header[name] === undefined) fields[name] = [];
  return fields;
}

const list = (value) => [value].flat().map(String);
const text = (value) => (value === undefined ? undefined : list(value).join(', '));

/** Sends a replay or a problem. */
export function send(res, { status, headers, body, problem }) {
  if (problem !== undefined) for (const name of ['Content-Length', 'ETag', 'Last-Modified']) res.removeHeader(name);
  for (const [name, value] of Object.entries(headers)) {
    if (Array.isArray(value) && value.length === 0) res.removeHeader(name);
    else res.setHeader(name, value);
  }
  if (status !== 204 && status !== 304 && res.req.method !== 'HEAD') res.setHeader('Content-Length', body.length);
  res.statusCode = status;
  res.end(body.length > 0 ? body : undefined);
}

/** Returns a stored outcome as the response to a request with these headers. */
export function replayed({ status, headers, contentType, body, expires }, request) {
  const fields = {};
  const allowed = lookup(headers, 'access-control-allow-origin');
  const origin = request.origin;
  const foreign = allowed !== undefined && origin !== undefined && String(allowed) !== '*' && String(allowed) !== String(origin);
  for (const [name, values] of Object.entries(headers)) {
    if (!foreign || !/^access-control-/i.test(name)) fields[name] = values;
  }
  if (contentType !== null) fields['Content-Type'] = contentType;
  if (expires !== undefined) fields['Idempotency-Expires'] = expires;
  fields['Idempotent-Replayed'] = 'true';
  if (lookup(fields, 'cache-control') === undefined) fields['Cache-Control'] = 'no-store';
  return { status, headers: fields, body: status === 204 || status === 304 ? Buffer.alloc(0) : body };
}

/** The values of a field. The case of its name is ignored. */
export function lookup(headers, name) {
  return Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
}

/** Reports whether Accept-Encoding fields accept each of some content codings (RFC 9110, section 12.5.3). */
export function accepts(accept, codings) {
  if (accept === undefined) return true;
  const weights = new Map();
  for (const element of accept.join(',').split(',')) {
    const [coding, ...parameters] = element.split(';').map((part) => part.trim().toLowerCase());
    const q = parameters.find((parameter) => parameter.startsWith('q='));
    if (coding !== '' && !weights.has(coding)) weights.set(coding, q === undefined || Number(q.slice(2)) > 0);
  }
  return codings.join(',').split(',').map((coding) => coding.trim().toLowerCase())
    .every((coding) => coding === '' || coding === 'identity' || (weights.get(coding) ?? weights.get('*') ?? false));
}
