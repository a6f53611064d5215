export { canonicalJSON } from './canonical.js';
export { emit } from './emit.js';
export { fingerprint, requestFingerprint } from './fingerprint.js';
