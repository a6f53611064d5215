// What the types of the tools allow, for tsc.

import pg from 'pg';
import { tools } from '@stet-go/stet/agents';

const tool = tools({ pool: new pg.Pool(), scope: (extra) => extra.authInfo.clientId, timeout: 1000 });
const pay = tool('pay', async ({ order }: { order: string }) => ({ order, at: new Date() }), { key: ({ order }) => order });
const at: string = (await pay({ order: 'o' }, { key: 'toolu_1' })).at;
// @ts-expect-error: an argument is missing
await pay({ at });
// @ts-expect-error: a scope is required
tools({ pool: new pg.Pool() });
