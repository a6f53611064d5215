// A service of the tests with prepared responses.

import { once } from 'node:events';
import http from 'node:http';

/** A service that answers each request by the next of some functions, the last again and again; requests has the received ones. */
export async function service(t, ...answers) {
  const requests = [];
  const server = http.createServer(async (req, res) => {
    const chunks = [];
    for await (const chunk of req) chunks.push(chunk);
    requests.push({ method: req.method, url: req.url, headers: req.headers, key: req.headers['idempotency-key'], body: Buffer.concat(chunks).toString() });
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    await answer(res, req);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => { server.close(); server.closeAllConnections(); });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

export const reply = (status, headers = {}, body = '') => (res) => res.writeHead(status, headers).end(body);
export const lost = (res) => res.socket.destroy();
