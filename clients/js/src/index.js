export { canonicalJSON } from './canonical.js';
export { fingerprint, requestFingerprint } from './fingerprint.js';
