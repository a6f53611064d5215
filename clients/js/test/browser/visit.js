// What the tests in a browser do with it.

import { chromium } from 'playwright-core';
import { shop } from '../shop.js';

export const executablePath = process.env.STET_CHROMIUM;
export const pages = { '/': new URL('page.html', import.meta.url) };
export const outcome = '201 {"charge":1}';

/** Starts Chromium; shop.test is this host, and not a place that it trusts without TLS. */
export async function launch() {
  // Node 20 may never end in tidying up its handles, once all tests have (in CleanupHandles): it exits before that.
  process.once('exit', () => process.exit());
  return chromium.launch({ executablePath, args: ['--host-resolver-rules=MAP shop.test 127.0.0.1'] });
}

/** Tabs of one browser profile at a shop. */
export async function visitWith(browser, t, { at = (url) => url } = {}) {
  const s = await shop(t, pages);
  const context = await browser.newContext();
  t.after(() => context.close());
  const open = async (query = '') => {
    const page = await context.newPage();
    page.setDefaultTimeout(20_000);
    await page.goto(`${at(s.url)}/?${query}`);
    await ready(page);
    return page;
  };
  return { ...s, context, open };
}

export const ready = (page) => page.locator('button[data-ready]').waitFor();
export const submit = (page) => page.locator('button').click();

/** What the page shows, when it does. */
export async function shown(page) {
  await page.waitForFunction(() => document.querySelector('output').textContent !== '');
  return page.locator('output').textContent();
}

export async function reload(page) {
  await page.reload();
  await ready(page);
}
