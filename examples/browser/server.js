// A shop that knows nothing of idempotency: it serves the page and the client, and takes payments.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';

const client = new URL('.', import.meta.resolve('@stet-go/stet/client'));
let payments = 0;

const server = createServer(async (req, res) => {
  const { pathname } = new URL(req.url, 'http://localhost');
  if (req.method === 'POST' && pathname === '/payments') {
    req.resume().on('end', () => res.writeHead(201, { 'Content-Type': 'application/json' }).end(JSON.stringify({ payment: ++payments })));
    return;
  }
  const file = pathname === '/' ? new URL('index.html', import.meta.url) : new URL(pathname.replace('/stet/', ''), client);
  const type = file.pathname.endsWith('.js') ? 'text/javascript' : 'text/html';
  if (pathname !== '/' && !(pathname.startsWith('/stet/') && file.href.startsWith(client.href))) res.writeHead(404).end();
  else res.writeHead(200, { 'Content-Type': type }).end(await readFile(file).catch(() => ''));
});
server.listen(process.env.PORT ?? 3000, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
