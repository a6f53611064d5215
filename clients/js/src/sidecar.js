// Services behind the sidecar: stet proxy claims the operation, and the service settles it (settles: service).

import { problem } from './problem.js';

const text = /^c1\.[0-9a-f]{64}\.[0-9a-f]{32}\.[0-7][0-9a-f]{15}$/;

/** The options that are set in stet.yaml instead. */
export const theSidecars = ['scope', 'namespace', 'previous', 'claimPrevious', 'class', 'name', 'ref', 'header', 'canonicalize'];

/** The values of Stet-Claim that a request has. */
export const claimsOf = (req) => req.headersDistinct['stet-claim'] ?? [];

/** The operation that a request's claim names: { operation }, or { refusal }. */
export function claimed(options, claims) {
  const refuse = (detail) => {
    logOnce(options, `${detail} Nothing was executed.`);
    return { refusal: problem('misconfigured', { base: options.problemBase, detail }) };
  };
  // If the claim were ignored, the request would run under a second record, which the sidecar does not know. If a client
  // has sent the field, it would run under none. A client that sends it harms only itself.
  if (!options.sidecar) return refuse('The request has a Stet-Claim, and this service does not settle for a sidecar (sidecar: true).');
  if (claims.length === 0) return refuse('The request did not come through the sidecar: it has no Stet-Claim.');
  if (claims.length > 1 || !text.test(claims[0])) return refuse('The request\'s Stet-Claim is not one claim.');
  return { operation: { claim: claims[0] } };
}

const logged = new WeakMap();

/** Logs a message once, because any request can cause it. */
export function logOnce(options, message) {
  const before = logged.get(options) ?? new Set();
  logged.set(options, before);
  if (before.has(message)) return;
  before.add(message);
  options.log(message);
}

/** The response if a claim has ended before it was settled. */
export function fenced(options) {
  options.log('the claim of the sidecar has ended or was never one of this database: this attempt was rolled back');
  const detail = 'This try was too late, and was rolled back. Another one may have been executed.';
  return problem('in-flight', { base: options.problemBase, detail, again: 1 });
}
