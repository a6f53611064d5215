// The errors of operation().

import { problemOf } from './problem.js';

/** Why an operation has no value to return. */
export class OperationError extends Error {
  name = 'OperationError';

  constructor(reason, { detail, execution, details, cause } = {}) {
    const known = problemOf(reason);
    super(`stet: ${detail ?? known.detail}`, { cause });
    Object.assign(this, { reason, execution: execution ?? known.execution, retryable: known.retryable, details });
  }
}

/** A failure that is stored: no retry runs again. Its writes are undone. */
export class PermanentError extends Error {
  name = 'PermanentError';

  constructor(message, { details, ...options } = {}) {
    super(message, options);
    this.details = details;
  }
}
