import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import pg from 'pg';
import { z } from 'zod';
import { tools } from '@stet-go/stet/agents';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const tool = tools({ pool, scope: 'acct_1' });

const pay = tool('pay', async ({ amount }: { order: string; amount: number }, { client }) => {
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [amount]);
  if (amount === 13) throw new Error('no luck');
  return { payment: rows[0].id as string };
});

const server = new McpServer({ name: 'shop', version: '1.0.0' });
server.registerTool('pay', { description: 'Pays an order.', inputSchema: { order: z.string(), amount: z.number().int() } }, pay.mcp);
await server.connect(new StdioServerTransport());
