export { canonicalJSON } from './canonical.js';
export { emit } from './emit.js';
export { fingerprint, requestFingerprint } from './fingerprint.js';
export { migrate, migrationStatus } from './migrate.js';
export { migrationSQL, migrations } from './migrations.js';
export { operation } from './operation.js';
export { OperationError, PermanentError } from './operationerror.js';
