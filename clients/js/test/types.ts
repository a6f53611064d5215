// What the types of the client allow, for tsc.

import { createClient, indexedDBJournal, memoryJournal, type Answer, type Options, type Pending } from '@stet-go/stet/client';
import { check } from '@stet-go/stet/testing';

const options: Options = { journal: typeof indexedDB === 'undefined' ? memoryJournal({ maxEntries: 10 }) : indexedDBJournal({ name: 'user-7' }), attempts: 3, authorize: async () => ({ Authorization: 'Bearer x' }), observe: ({ retryIn }) => console.log(retryIn) };
const client = createClient(options);
const answer: Answer = await client.fetch(new URL('/pay', 'https://shop.test'), { method: 'POST', body: new FormData(), operation: 'o', wait: 0, signal: AbortSignal.timeout(1) });
if (answer.settled) console.log(await answer.response?.json(), answer.execution === 'executed', answer.problem?.title);
await answer.told();
const left: Pending[] = await client.pending();
for (const { reason } of await client.resume()) console.log(reason, left[0]?.created.getTime());
await client.forget('o', { unsettled: true });
// @ts-expect-error: a method is required
await client.fetch('/pay', { body: '' });
// @ts-expect-error: a stream cannot be sent again
await client.fetch('/pay', { method: 'POST', body: new ReadableStream() });
// @ts-expect-error: there is no such option
createClient({ retries: 3 });

void check({ start: (port) => ['node', 'server.js', String(port)], request: (n) => ({ path: '/payments', body: `${n}` }), effects: async (n) => n, patience: 1000 });
