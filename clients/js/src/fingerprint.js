// Fingerprints: the digest of a request, the same bytes as in Go.

import * as crypto from 'node:crypto';

/** SHA-256 of bytes. Node 20.12 has a function for it, which costs half as much. */
export const sha256 = crypto.hash === undefined ? (bytes) => crypto.createHash('sha256').update(bytes).digest() : (bytes) => crypto.hash('sha256', bytes, 'buffer');

/** The fingerprint of some parts: stet.NewFingerprint of Go, and stet_fingerprint of SQL. */
export function fingerprint(parts, version = 1) {
  const all = [Buffer.of(version)];
  for (const part of parts) {
    const bytes = typeof part === 'string' ? Buffer.from(part, 'utf8') : part;
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(bytes.length));
    all.push(length, bytes);
  }
  return Buffer.concat([all[0], sha256(Buffer.concat(all))]);
}

// Some servers let these fields override the method of a POST.
const overrides = ['X-Http-Method-Override', 'X-Http-Method', 'X-Method-Override'];

/**
 * The fingerprint of a request, as stethttp makes it: of the method, what overrides it, the target
 * as it was sent, content type, content coding and body; of a multipart body its parts, so that the
 * random boundary does not count. charset=utf-8 of JSON and of forms does not count, nor does the
 * time in the header of gzip. headers has a list of values for each name in lower case, with a
 * character of Latin-1 for each byte.
 */
export function requestFingerprint({ method, target, headers, body }, canonicalize) {
  let head = '';
  for (const name of overrides) {
    for (const value of headers[name.toLowerCase()] ?? []) head += `${name}:${value}\n`;
  }
  const contentType = (headers['content-type'] ?? []).join(', ').replace(utf8Type, '$1');
  const coding = (headers['content-encoding'] ?? []).join(', ');
  const of = (type, rest, version) => fingerprint([...[method, head + origin(target), type, coding].map((part) => Buffer.from(part, 'latin1')), ...rest], version);
  body = comparedBody(coding, body);
  if (body.length === 0) return of(contentType, [body]);
  const { type, parameters } = parseMediaType(contentType);
  if (type.startsWith('multipart/')) {
    const parts = splitParts(parameters.get('boundary') ?? '', body);
    parameters.delete('boundary');
    if (parts !== undefined) return of(formatMediaType(type, parameters), ['multipart', ...parts]);
  }
  return canonicalize === undefined ? of(contentType, [body]) : of(contentType, [canonicalize(type, body)], 2);
}

// The content type of a format that is UTF-8 also without its charset.
const utf8Type = /^(application\/(?:json|x-www-form-urlencoded|[^ \t;,"]+\+json))[ \t]*;[ \t]*charset="?utf-8"?[ \t]*$/i;

// comparedBody is gzip without the time at which it was compressed (RFC 1952, MTIME).
function comparedBody(coding, body) {
  if (coding.toLowerCase() !== 'gzip' || body.length < 10 || body[0] !== 0x1f || body[1] !== 0x8b) return body;
  return Buffer.from(body).fill(0, 4, 8);
}

const token = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+/;
const maxParts = 1024;

/**
 * The parts of a multipart body, each as its header and its content; undefined if it is not
 * well-formed, has too many parts, or a header that is out of the ordinary: it counts whole then.
 */
function splitParts(boundary, body) {
  const text = body.toString('latin1');
  const delimiter = `--${boundary}`;
  if (boundary === '' || !text.startsWith(`${delimiter}\r\n`)) return undefined;
  const pieces = `\r\n${text}`.split(`\r\n${delimiter}`);
  if (pieces.length - 2 >= maxParts || !/^--[ \t]*(?:\r\n|$)/.test(pieces.at(-1))) return undefined;
  const parts = [];
  for (const piece of pieces.slice(1, -1)) {
    const blank = piece.indexOf('\r\n\r\n');
    if (!piece.startsWith('\r\n') || blank < 0) return undefined;
    const fields = [];
    for (const line of blank === 0 ? [] : piece.slice(2, blank).split('\r\n')) {
      const [, name, value] = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\n]*)$/.exec(line) ?? [];
      if (name === undefined) return undefined;
      const canonical = name.toLowerCase().replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase());
      fields.push([canonical, value.replace(/^[ \t]+|[ \t]+$/g, '')]);
    }
    fields.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)); // stable: those of one name keep their order
    parts.push(fields.map(([name, value]) => `${name}:${value}\n`).join(''), piece.slice(blank + 4));
  }
  return parts.map((part) => Buffer.from(part, 'latin1'));
}

// formatMediaType writes a media type as Go's mime.FormatMediaType does.
function formatMediaType(type, parameters) {
  return [...parameters].sort(([a], [b]) => (a < b ? -1 : 1))
    .reduce((text, [name, value]) => `${text}; ${name}=${token.exec(value)?.[0] === value ? value : `"${value.replace(/["\\]/g, '\\$&')}"`}`, type);
}

// origin is the target in origin form; it may have been sent in absolute form.
function origin(target) {
  if (target.startsWith('/')) return target;
  const scheme = target.indexOf('://');
  if (scheme < 0) return target;
  const rest = target.slice(scheme + 3);
  const path = rest.search(/[/?]/);
  return path < 0 ? '/' : rest.slice(path);
}


/** The media type of a content type, in lower case and without its parameters; '' if it is malformed. */
export const mediaType = (contentType) => parseMediaType(contentType).type;

// parseMediaType is Go's mime.ParseMediaType, less the continued parameters of RFC 2231.
function parseMediaType(contentType) {
  const malformed = { type: '', parameters: new Map() };
  const semicolon = contentType.indexOf(';');
  const type = (semicolon < 0 ? contentType : contentType.slice(0, semicolon)).trim().toLowerCase();
  if (!/^[!#$%&'*+\-.^_`|~0-9a-z]+(?:\/[!#$%&'*+\-.^_`|~0-9a-z]+)?$/.test(type)) return malformed;
  let rest = semicolon < 0 ? '' : contentType.slice(semicolon);
  const parameters = new Map();
  for (rest = rest.trimStart(); rest !== ''; rest = rest.trimStart()) {
    if (rest.trim() === ';') break;
    const parameter = /^;\s*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)\s*=\s*/.exec(rest);
    if (parameter === null) return malformed;
    rest = rest.slice(parameter[0].length);
    const value = parameterValue(rest);
    if (value === undefined) return malformed;
    const name = parameter[1].toLowerCase();
    if (parameters.has(name) && parameters.get(name) !== value.text) return malformed;
    parameters.set(name, value.text);
    rest = rest.slice(value.length);
  }
  return { type, parameters };
}

// parameterValue reads a token or a quoted string, as Go does: a backslash escapes only what would
// need it.
function parameterValue(rest) {
  if (!rest.startsWith('"')) {
    const [text] = token.exec(rest) ?? [];
    return text === undefined ? undefined : { text, length: text.length };
  }
  let text = '';
  for (let i = 1; i < rest.length; i++) {
    const c = rest[i];
    if (c === '"') return { text, length: i + 1 };
    if (c === '\r' || c === '\n') return undefined;
    if (c === '\\' && i + 1 < rest.length && /[()<>@,;:\\"/[\]?=]/.test(rest[i + 1])) i++;
    text += rest[i];
  }
  return undefined;
}
