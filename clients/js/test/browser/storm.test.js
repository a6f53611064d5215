// Cuts, reloads, kills and tabs in no order: one charge for each operation.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { points } from '../cutter.js';
import { launch, shown, submit, visitWith } from './visit.js';

const rounds = Number(process.env.STET_ROUNDS ?? 4);
const first = Number(process.env.STET_SEED ?? Date.now() % 2147483647) || 1;
let browser;

before(async () => { browser = await launch(); });
after(() => browser.close());

for (const [where, at] of [['', undefined], [', without TLS', (url) => url.replace('127.0.0.1', 'shop.test')]]) {
  test(`${rounds} rounds of cuts, reloads, kills and tabs${where} (STET_SEED=${first})`, { timeout: 60_000 + rounds * 20_000 }, async (t) => {
    let seed = first;
    const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
    const any = (list) => list[random(list.length)];
    const { open, wire, charges, hold, release } = await visitWith(browser, t, { at });
    for (let round = 1; round <= rounds; round++) {
      const path = any(['/charges', '/jobs']);
      const done = [path];
      const query = () => { done.push('open'); return `operation=${round}&path=${path}&attempts=${1 + random(4)}`; };
      const tabs = [await open(query())];
      for (let steps = 2 + random(6); steps > 0; steps--) {
        const what = any(['cut', 'cut', 'submit', 'submit', 'submit', 'reload', 'tab', 'kill', 'hold', 'release', 'heal']);
        done.push(what);
        if (what === 'cut') void wire.cut({ ...points[any(Object.keys(points).slice(1))], once: random(2) === 0, to: any(['POST ', 'GET /states/']) });
        if (what === 'heal') wire.heal();
        if (what === 'hold') void hold();
        if (what === 'release') release();
        if (what === 'submit') await submit(any(tabs));
        if (what === 'reload') await any(tabs).reload();
        if (what === 'tab' && tabs.length < 3) tabs.push(await open(query()));
        if (what === 'kill') {
          const [killed] = tabs.splice(random(tabs.length), 1, await open(query()));
          await killed.goto('chrome://crash').catch(() => {});
          await killed.close();
        }
      }
      wire.heal();
      release();
      const last = await open(`operation=${round}&path=${path}`);
      await submit(last);
      assert.equal(await shown(last).catch((err) => `${err}`), `201 {"charge":${round}}`, `round ${round}: ${done}`);
      assert.equal(charges.length, round, `round ${round} has charged more than once: ${done}`);
      for (const tab of [...tabs, last]) await tab.close();
    }
  });
}
