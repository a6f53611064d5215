// Canonical JSON, byte for byte that of Go's package canonical: members ordered as in RFC 8785,
// no white space, strings in their shortest spelling, and number literals as they were sent. So
// JSON.parse will not do: 9007199254740992 and 9007199254740993 would become one number.

const maxDepth = 10_000;

/**
 * Returns a function that brings JSON bodies into canonical form, without the values that the
 * JSON pointers name. A body that is not one valid JSON text (RFC 7493), or is of
 * another type, is returned unchanged.
 */
export function canonicalJSON(...exclude) {
  const root = { excluded: false, below: new Map() };
  for (const pointer of exclude) add(root, pointer);
  return (mediaType, body) => {
    if (!isJSON(mediaType)) return body;
    try {
      const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body);
      return Buffer.from(arrange(text, root), 'utf8');
    } catch (error) {
      if (error instanceof SyntaxError || error.code === 'ERR_ENCODING_INVALID_ENCODED_DATA') return body;
      throw error;
    }
  };
}

/** Reports whether a media type, with or without parameters, is JSON. */
export function isJSON(mediaType) {
  const type = mediaType.split(';', 1)[0].trim().toLowerCase();
  return type === 'application/json' || type.endsWith('+json');
}

function add(root, pointer) {
  if (typeof pointer !== 'string' || !/^(?:\/(?:[^~/]|~[01])*)+$/u.test(pointer) || !pointer.isWellFormed()) {
    throw new TypeError(`stet: ${JSON.stringify(pointer)} is not a JSON pointer to a part of a body; write it as "/member/0" (RFC 6901)`);
  }
  let at = root;
  for (const token of pointer.slice(1).split('/')) {
    const name = token.replaceAll('~1', '/').replaceAll('~0', '~');
    if (!at.below.has(name)) at.below.set(name, { excluded: false, below: new Map() });
    at = at.below.get(name);
  }
  at.excluded = true;
}

// arrange reads the text once, without recursion: bodies may be nested deeply. The output is
// joined by +, which V8 does without copying.
function arrange(text, root) {
  const reader = new Reader(text);
  const open = []; // the objects and arrays around
  for (;;) {
    let value = reader.scalar();
    if (value === undefined) {
      const part = open.length > 0 ? open.at(-1).next() : root;
      const inside = reader.take('{') ? new Members(part) : reader.take('[') ? new Elements(part) : reader.fail();
      if (open.push(inside) > maxDepth) reader.fail();
      if (!reader.take(inside.end)) {
        inside.begin(reader);
        continue;
      }
      value = open.pop().written();
    }
    // A value ends here, and perhaps the object or array around it.
    for (;;) {
      const around = open.at(-1);
      if (around === undefined) {
        reader.finish();
        return value;
      }
      around.add(value);
      if (reader.take(',')) {
        around.begin(reader);
        break;
      }
      if (!reader.take(around.end)) reader.fail();
      value = open.pop().written();
    }
  }
}

// Members are those of an object.
class Members {
  end = '}';
  names = new Set();
  list = [];
  ordered = true;

  constructor(part) {
    this.part = part;
  }

  // begin reads the next member's name.
  begin(reader) {
    const { text, value } = reader.string() ?? reader.fail();
    if (this.names.has(value)) reader.fail(); // which of them would count?
    this.names.add(value);
    if (!reader.take(':')) reader.fail();
    this.text = text;
    this.name = value;
  }

  // next is the part that the value is, if a pointer leads there.
  next() {
    return this.part?.below.get(this.name);
  }

  add(value) {
    if (this.next()?.excluded) return;
    const last = this.list.at(-1);
    if (last !== undefined && last.name > this.name) this.ordered = false;
    this.list.push({ name: this.name, written: this.text + ':' + value });
  }

  written() {
    // Strings are compared by their UTF-16 code units, as RFC 8785 has it.
    if (!this.ordered) this.list.sort((a, b) => (a.name < b.name ? -1 : 1));
    let out = '{';
    for (let i = 0; i < this.list.length; i++) out += (i > 0 ? ',' : '') + this.list[i].written;
    return out + '}';
  }
}

// Elements are those of an array.
class Elements {
  end = ']';
  count = 0;
  out = '[';

  constructor(part) {
    this.part = part;
  }

  begin() {}

  next() {
    return this.part?.below.get(String(this.count));
  }

  add(value) {
    // A value that is left out becomes null: the others do not change places.
    this.out += (this.count > 0 ? ',' : '') + (this.next()?.excluded ? 'null' : value);
    this.count++;
  }

  written() {
    return this.out + ']';
  }
}

class Reader {
  at = 0;

  constructor(text) {
    this.text = text;
  }

  fail() {
    throw new SyntaxError('not a JSON text');
  }

  space() {
    for (;;) {
      const c = this.text.charCodeAt(this.at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      this.at++;
    }
  }

  // take goes past a character, if it comes next.
  take(c) {
    this.space();
    if (this.text[this.at] !== c) return false;
    this.at++;
    return true;
  }

  finish() {
    this.space();
    if (this.at !== this.text.length) this.fail();
  }

  // scalar returns the canonical form of a string, a number or a literal; undefined if an object
  // or an array comes next.
  scalar() {
    this.space();
    const c = this.text[this.at];
    switch (c) {
      case '{':
      case '[':
        return undefined;
      case '"':
        return this.string().text;
      case 't':
        return this.literal('true');
      case 'f':
        return this.literal('false');
      case 'n':
        return this.literal('null');
    }
    return this.number();
  }

  literal(text) {
    if (!this.text.startsWith(text, this.at)) this.fail();
    this.at += text.length;
    return text;
  }

  number() {
    const start = this.at;
    if (this.text[this.at] === '-') this.at++;
    if (this.text[this.at] === '0') this.at++;
    else this.digits();
    if (this.text[this.at] === '.') {
      this.at++;
      this.digits();
    }
    if (this.text[this.at] === 'e' || this.text[this.at] === 'E') {
      this.at++;
      if (this.text[this.at] === '+' || this.text[this.at] === '-') this.at++;
      this.digits();
    }
    return this.text.slice(start, this.at);
  }

  digits() {
    const start = this.at;
    for (let c = this.text.charCodeAt(this.at); c >= 0x30 && c <= 0x39; c = this.text.charCodeAt(++this.at));
    if (this.at === start) this.fail();
  }

  // string reads a string; undefined if none comes next.
  string() {
    this.space();
    if (this.text[this.at] !== '"') return undefined;
    const start = this.at++;
    let escaped = false;
    for (let c = this.text.charCodeAt(this.at); c !== 0x22; c = this.text.charCodeAt(++this.at)) {
      if (!(c >= 0x20)) this.fail(); // also at the end of the text
      if (c === 0x5c) {
        escaped = true;
        this.at++;
      }
    }
    const text = this.text.slice(start, ++this.at);
    if (!escaped) return { text, value: text.slice(1, -1) };
    const value = JSON.parse(text);
    if (!value.isWellFormed()) this.fail(); // half of a pair of surrogates is no character
    return { text: JSON.stringify(value), value };
  }
}
