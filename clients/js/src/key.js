// The key of a request, as stethttp reads it.

const maxKey = 255;
const maxField = 4096; // of a quoted key, parameters included

const bare = /^(?:-?[0-9]{1,15}|-?[0-9]{1,12}\.[0-9]{1,3}|"(?:[ !#-[\]-~]|\\["\\])*"|[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*|:[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15})/;

/** Returns the key in a header field as { key }, or the error in it as { flaw }. */
export function parseKey(field) {
  let key = field.replace(/^[ \t]+|[ \t]+$/g, '');
  if (key === '') return { flaw: 'The key is empty.' };
  if (key[0] === '"') {
    if (key.length > maxField) return { flaw: 'The key is longer than 255 bytes.' };
    key = parseQuoted(key);
    if (key === undefined) return { flaw: 'The key begins with a quote but is not a structured field string (RFC 9651).' };
  } else if (key.includes(',')) {
    return { flaw: 'The key has a comma and is not in double quotes: it may be two keys that something on the way has joined.' };
  }
  if (key === '') return { flaw: 'The key is empty.' };
  if (key.length > maxKey) return { flaw: 'The key is longer than 255 bytes.' };
  if (!/^[!-~]*$/.test(key)) return { flaw: 'The key has a byte that is not visible ASCII.' };
  return { key };
}

// parseQuoted parses an Item of type String (RFC 9651); its parameters are ignored.
function parseQuoted(field) {
  const [quoted] = /^"(?:[ !#-[\]-~]|\\["\\])*"/.exec(field) ?? [];
  if (quoted === undefined) return undefined;
  let rest = field.slice(quoted.length);
  while (rest.startsWith(';')) {
    const [name] = /^; *[a-z*][a-z0-9_\-.*]*/.exec(rest) ?? [];
    if (name === undefined) return undefined;
    rest = rest.slice(name.length);
    if (rest.startsWith('=')) {
      const [value] = bare.exec(rest.slice(1)) ?? [];
      if (value === undefined) return undefined;
      rest = rest.slice(1 + value.length);
    }
  }
  return rest === '' ? quoted.slice(1, -1).replace(/\\(["\\])/g, '$1') : undefined;
}
