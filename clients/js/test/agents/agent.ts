import { createInterface } from 'node:readline';
import pg from 'pg';
import { CallRefused, tools } from '@stet-go/stet/agents';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const tool = tools({ pool, scope: 'acct_1' });

const pay = tool('pay', async ({ amount }: { order: string; amount: number }, { client }) => {
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [amount]);
  return { payment: rows[0].id as string };
}, { key: ({ order }) => order });

// No argument says which tip it is: the key is the ID of the call.
const tip = tool('tip', async ({ amount }: { amount: number }, { client }) => {
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [amount]);
  return { payment: rows[0].id as string };
});

// The tool calls of a model, in turn: each is {"id": …, "name": …, "input": {…}} on a line.
for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  try {
    console.log(JSON.stringify(await (call.name === 'pay' ? pay : tip)(call.input, { key: call.id })));
  } catch (error) {
    if (!(error instanceof CallRefused)) throw error;
    console.log('error:', error.message); // the model reads this
  }
}
await pool.end();
