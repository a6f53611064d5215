// What an error of PostgreSQL means.

import { rights } from './statements.js';

/**
 * Reports whether an error of COMMIT proves that nothing was committed: the server has
 * answered, and neither ended nor broke.
 */
export function refused(error) {
  return code(error) !== '' && !/^(?:08|40003|53|57P|58|XX)/.test(code(error));
}

/**
 * The kind of an error if nothing was committed: 'unavailable', the same request
 * may be sent again; 'unreadable', of a stored outcome; 'fenced', the claim has ended; 'wiring', of
 * how stet is used; else 'other'.
 */
export function kind(error) {
  const c = code(error);
  if (c === 'ST004' || c === 'ST005') return 'unreadable';
  if (c === 'ST002') return 'fenced';
  if (c.startsWith('ST')) return 'wiring';
  return c === '' || /^(?:08|26|40|53|55P03|57|58|XX)/.test(c) ? 'unavailable' : 'other';
}

/** The SQLSTATE of an error, '' if it has none. Codes of the system begin with E. */
export function code(error) {
  return typeof error?.code === 'string' && /^[0-9A-DF-Z][0-9A-Z]{4}$/.test(error.code) ? error.code : '';
}

/** An error of how stet is used. */
export const wiring = (message) => Object.assign(new Error(`stet: ${message}`), { code: 'ST001' });

/** Explains the error of a COMMIT that a handler has sent. The foreign key of an operation without an outcome has refused it. */
export function explained({ table }, error) {
  if (code(error) === '23503' && error.constraint === (table === 'records' ? 'stet_unsettled' : `${table}_unsettled`)) {
    error.message = 'stet: this transaction has begun an operation and has neither settled nor released it: nothing was committed';
  }
  return error;
}

/** What to do about a database that is not prepared; '' for other errors. names are the functions that were needed. */
export function advice(options, error, names = ['begin_raw', 'settle_raw']) {
  const { schema, table, mode, sidecar } = options;
  if (['3F000', '42883', '42P01'].includes(code(error))) { // no such schema, function or table
    return `. Run: npx stet migrate up --store-schema ${schema} --store-table ${table}, as the owner of the database`;
  }
  if (code(error) !== '42501') return '';
  const lacking = rights({ ...options, mode: sidecar ? 'functions' : mode }, names);
  return `. Run, as the owner of the database: ${lacking.map((right) => `GRANT ${right} TO your_role`).join('; ')}`;
}

/** The part of an error that may be logged: not its details, which can have values of rows. */
export function described(error) {
  return [error?.code, error?.message].filter((text) => text).join(': ');
}
