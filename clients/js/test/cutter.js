// A connection that breaks: stands between clients and stet proxy, and cuts off what goes to one path.

import { once } from 'node:events';
import net from 'node:net';

/** The bytes of a whole HTTP message at the beginning of data, as { head, length }; undefined before it is whole. */
function message(data) {
  const end = data.indexOf('\r\n\r\n');
  if (end < 0) return undefined;
  const head = end + 4;
  const [, length = '0'] = /\r\ncontent-length: *(\d+)/i.exec(data.toString('latin1', 0, head)) ?? [];
  return data.length >= head + Number(length) ? { head, length: head + Number(length) } : undefined;
}

/**
 * Starts a cutter in front of target, a URL. cut(point) arms it, and returns a promise of the first cut: point is
 * { side, at }, where side is 'connect', 'request' or 'answer', and at a function of { head, length } that returns how many
 * bytes of the message pass. It cuts every POST, or what begins with to, until heal is called, or the first only, with once.
 */
export async function cutter(target) {
  const { hostname, port } = new URL(target);
  const sockets = new Set();
  let point, cuts = 0, noticed = () => {};
  const count = () => {
    cuts++;
    if (point?.once) point = undefined;
    noticed();
  };
  const server = net.createServer((client) => {
    const upstream = net.connect(port, hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('error', () => {});
      socket.on('close', () => { sockets.delete(socket); client.destroy(); });
    }
    client.on('close', () => upstream.end()); // the passed bytes arrive
    if (point?.side === 'connect') {
      count();
      return void client.resetAndDestroy();
    }
    let request = Buffer.alloc(0), answer = Buffer.alloc(0), mine;
    client.on('data', (data) => {
      if (!point && request.length === 0) return void upstream.write(data);
      request = Buffer.concat([request, data]);
      if (!request.toString('latin1').startsWith(point?.to ?? 'POST ')) return pass();
      const whole = message(request);
      if (whole === undefined) return undefined;
      if (point?.side === 'connect') { // it had been connected before
        count();
        return client.resetAndDestroy();
      }
      mine = point;
      if (mine?.side !== 'request') return pass();
      upstream.write(request.subarray(0, mine.at(whole)), () => { count(); client.resetAndDestroy(); upstream.end(); });
      return undefined;
    });
    const pass = () => {
      upstream.write(request);
      request = Buffer.alloc(0);
    };
    upstream.on('data', (data) => {
      if (mine?.side !== 'answer') return void client.write(data);
      answer = Buffer.concat([answer, data]);
      const whole = message(answer);
      if (whole === undefined || upstream.destroyed) return undefined;
      const passed = answer.subarray(0, mine.at(whole));
      upstream.destroy();
      if (passed.length === 0) { count(); return client.resetAndDestroy(); }
      client.end(passed, () => { count(); });
      return undefined;
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    cut: (armed) => {
      point = armed;
      return new Promise((resolve) => (noticed = resolve));
    },
    heal: () => { point = undefined; },
    cuts: () => cuts,
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

/** Points at which a connection is cut. */
export const points = {
  'before it is connected': { side: 'connect' },
  'before the request': { side: 'request', at: () => 0 },
  'in the header of the request': { side: 'request', at: ({ head }) => head >> 1 },
  'before the body': { side: 'request', at: ({ head }) => head },
  'in the body': { side: 'request', at: ({ head, length }) => (head + length) >> 1 },
  'before the last byte of the body': { side: 'request', at: ({ length }) => length - 1 },
  'after the request': { side: 'request', at: ({ length }) => length },
  'before the answer': { side: 'answer', at: () => 0 },
  'in the header of the answer': { side: 'answer', at: ({ head }) => head >> 1 },
  'before the body of the answer': { side: 'answer', at: ({ head }) => head },
  'in the body of the answer': { side: 'answer', at: ({ head, length }) => (head + length) >> 1 },
  'before the last byte of the answer': { side: 'answer', at: ({ length }) => length - 1 },
};
