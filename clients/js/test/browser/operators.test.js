// The operators' page: an operator finds the operations that are unknown, opens a link to one of them, and resolves all.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { launch } from './visit.js';

const token = 'a-token-of-24-visible-ch';
let browser;

before(async () => { browser = await launch(); });
after(() => browser.close());

/** Starts stet proxy with an admin listener in front of a service that breaks off each response. */
async function sidecar(t) {
  const service = http.createServer((req) => req.on('data', () => {}).on('end', () => req.socket.destroy()));
  service.listen(0, '127.0.0.1');
  await once(service, 'listening');
  const dir = await mkdtemp(join(tmpdir(), 'stet-'));
  const config = join(dir, 'stet.yaml');
  await writeFile(config, [`upstream: {url: "http://127.0.0.1:${service.address().port}"}`, `store: ${join(dir, 'stet.db')}`, 'scope: header:X-Account', 'scope_label: scope',
    'routes: [{path: /payments, name: payments, reference: "header:X-Order"}, {path: /mail, name: mail}]', ''].join('\n'));
  const child = spawn(process.env.STET_PROGRAM, ['proxy', '--config', config, '--listen', '127.0.0.1:0', '--admin-listen', '127.0.0.1:0'],
    { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, STET_ADMIN_TOKEN: token } });
  const exited = once(child, 'exit');
  const stop = async () => {
    child.kill('SIGKILL');
    await exited;
  };
  t.after(async () => {
    await stop();
    service.close();
    service.closeAllConnections();
    await rm(dir, { recursive: true });
  });
  const urls = await new Promise((resolve, reject) => {
    const lines = [], found = {};
    createInterface({ input: child.stderr }).on('line', (line) => {
      lines.push(line);
      const url = /http:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0];
      if (/listening/.test(line) && url) found[/admin/.test(line) ? 'admin' : 'traffic'] ??= url;
      if (found.admin && found.traffic) resolve(found);
    }).on('close', () => reject(new Error(`stet proxy does not listen: ${lines.join('\n')}`)));
  });
  return { ...urls, stop };
}

async function pay(url, path, key) {
  const res = await fetch(url + path, { method: 'POST', body: '{}', headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key, 'X-Account': `tenant-${key}`, 'X-Order': `order-${key}` } });
  const problem = await res.json();
  assert.deepEqual([res.status, problem.operation], [504, res.headers.get('stet-operation')]);
  assert.match(problem.operation, /^[0-9a-f]{64}$/);
  return problem.operation;
}

test('an operator finds unknown operations by their names, follows the link of a problem, and resolves all of them', { timeout: 400_000 }, async (t) => {
  const { traffic, admin, stop } = await sidecar(t);
  const ids = [];
  for (const key of ['3', '1', '2']) ids.push(await pay(traffic, '/payments', key));
  await pay(traffic, '/mail', '4');
  const context = await browser.newContext({ colorScheme: 'dark' });
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(100_000);
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  const refs = async () => (await page.locator('#rows td.ref').allTextContents()).join();
  const showing = (text) => page.waitForFunction((text) => [...document.querySelectorAll('#rows td.ref')].map((td) => td.textContent).join() === text, text);

  await page.goto(`${admin}/#/operations/${ids[1]}`);
  await page.getByLabel('Token').fill(token);
  await page.keyboard.press('Enter');
  await page.locator('#detail[open]').waitFor();
  const fields = await page.locator('#d-fields').textContent();
  for (const text of [ids[1], 'payments', 'order-1', 'tenant-1']) assert.ok(fields.includes(text), `${text} is not in ${fields}`);
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => location.hash === '');

  await showing('order-3,order-1,order-2,–'); // the oldest first
  await page.getByRole('button', { name: 'Reference' }).click();
  await showing('–,order-1,order-2,order-3');
  assert.equal(await page.locator('th[data-sort=ref]').getAttribute('aria-sort'), 'ascending');
  await page.locator('#f-scope_label').fill('tenant-2');
  await page.keyboard.press('Enter');
  await showing('order-2');
  await page.locator('#f-scope_label').fill('');
  await page.locator('#f-class').fill('payments');
  await page.keyboard.press('Enter');
  await showing('order-1,order-2,order-3');
  assert.ok(await page.locator('#charts svg').count() > 5, 'there are no charts');

  await page.getByRole('button', { name: 'Change all of this list' }).click();
  await page.locator('#b-want', { hasText: '3' }).waitFor();
  await page.locator('#b-action').selectOption('failed');
  await page.locator('#b-want', { hasText: '3' }).waitFor();
  await page.locator('#b-reason').fill('no charge in the books');
  await page.locator('#b-try').click();
  await page.locator('#b-message', { hasText: '3 of 3 would be changed' }).waitFor();
  await page.locator('#b-do').click();
  await page.locator('#b-message', { hasText: 'Not confirmed' }).waitFor();
  await page.locator('#b-confirm').fill('3');
  await page.locator('#b-do').click();
  await page.locator('#b-message', { hasText: '3 of 3 were changed' }).waitFor();
  assert.deepEqual(await page.locator('#b-rows td:last-child').allTextContents(), ['is failed', 'is failed', 'is failed']);
  await page.keyboard.press('Escape');
  await showing(''); // none of the class payments is unknown
  assert.equal(await refs(), '');

  await page.setViewportSize({ width: 390, height: 800 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth), 'the page is wider than a phone');
  await stop();
  await page.locator('#age', { hasText: 'the server does not answer' }).waitFor();
  assert.deepEqual(errors, []);
});
