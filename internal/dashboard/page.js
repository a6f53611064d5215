"use strict";
// Content of the API is inserted only as text: a client or an upstream may have written it.

const el = (id) => document.getElementById(id);
const refreshEvery = 5000;
const pageSize = 50;
// short is what tells an ID from others for a person: the last digits, because the
// first are those of the scope.
const short = (id) => id.slice(-12);

let token = sessionStorage.getItem("stet-token") || "";
let about = null;   // what the API says of itself
let query = null;   // of the list: URLSearchParams without sort and page
let sort = "claimed"; // oldest first
let offset = 0;     // of the page that is shown
let updated = 0;    // when the page was last refreshed
let shown = null;   // the record in the dialog
let turn = 0;       // of listings: an answer that was overtaken is not shown

class Problem extends Error {
  constructor(status, doc) {
    super(doc.detail || doc.title || "the answer was " + status);
    this.status = status;
    this.doc = doc;
  }
}

async function call(method, path, content) {
  const headers = {};
  if (token) headers.Authorization = "Bearer " + token;
  if (content !== undefined) headers["Content-Type"] = "application/json";
  let res;
  try {
    res = await fetch(path, { method, headers, cache: "no-store", body: content === undefined ? undefined : JSON.stringify(content) });
  } catch {
    throw new Problem(0, { detail: "The process does not answer." });
  }
  const doc = await res.json().catch(() => ({}));
  if (res.ok) return doc;
  if (res.status === 401) askForToken();
  throw new Problem(res.status, doc);
}

// say shows a message, or takes it away.
function say(where, text, bad) {
  where.textContent = text;
  where.hidden = !text;
  where.classList.toggle("bad", Boolean(bad));
}

const fail = (where) => (err) => say(where, err.message, true);

function make(tag, text, className) {
  const e = document.createElement(tag);
  e.textContent = text;
  if (className) e.className = className;
  return e;
}

function ago(time) {
  let s = Math.max(0, Math.round((Date.now() - Date.parse(time)) / 1000));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (s >= size) return Math.floor(s / size) + " " + unit + " ago";
  }
  return s + " s ago";
}

const moment = (time) => time.replace("T", " ").replace(/\.\d+/, "").replace("Z", " UTC");
const stateOf = (r) => (r.dead ? "dead" : r.state);

const encrypted = (r) => (r.ref || "").startsWith("sealed:");

function noteOf(r) {
  const note = stateNote(r);
  if (!r.last_reason) return note;
  return note ? note + " (" + r.last_reason + ")" : r.last_reason;
}

function stateNote(r) {
  if (r.dead) return "its lease has run out";
  if (r.damage) return "it can only be expired: " + r.damage;
  if (r.state === "running") return "lease for " + r.lease_left;
  if (r.state === "unknown") return "nothing runs until it is resolved";
  if (r.state === "accepted") return "waits for a worker";
  return r.gone ? "its result is no longer kept" : "";
}

// The token.

function askForToken() {
  token = "";
  sessionStorage.removeItem("stet-token");
  el("detail").close();
  el("work").hidden = true;
  el("leave").hidden = true;
  el("login").hidden = false;
  el("token").focus();
}

el("login").addEventListener("submit", (ev) => {
  ev.preventDefault();
  token = el("token").value.trim();
  el("token").value = "";
  start();
});

el("leave").addEventListener("click", () => { askForToken(); say(el("message"), ""); });

async function start() {
  const given = token;
  try {
    about = await call("GET", "v1/about");
  } catch (err) {
    if (err.status !== 401) fail(el("message"))(err);
    else if (given) say(el("message"), "That is not the token of this process.", true);
    return;
  }
  if (token) sessionStorage.setItem("stet-token", token);
  say(el("message"), "");
  el("store").textContent = about.store + (about.changes ? "" : " (read-only: no token)");
  el("login").hidden = true;
  el("leave").hidden = !token;
  el("work").hidden = false;
  el("b-open").hidden = !about.changes;
  el("classes").replaceChildren(...about.classes.map((name) => { const o = make("option", ""); o.value = name; return o; }));
  const classes = el("c-class");
  classes.replaceChildren(classes.firstElementChild, ...about.classes.map((name) => { const o = make("option", name); o.value = name; return o; }));
  el("c-actor-label").hidden = Boolean(about.who);
  el("b-actor-label").hidden = Boolean(about.who);
  el("c-actor").value = el("b-actor").value = localStorage.getItem("stet-actor") || "";
  count().then(draw).catch(fail(el("message")));
  choose(["unknown"]);
  linked();
}

// linked shows the operation of a link: #/operations/ID.
function linked() {
  const id = /^#\/operations\/([0-9a-f]{64})$/i.exec(location.hash)?.[1];
  if (id && about && shown?.id !== id.toLowerCase()) show(id.toLowerCase()).catch(fail(el("message")));
}
window.addEventListener("hashchange", linked);

// The counts.

async function count() {
  const c = await call("GET", "v1/summary");
  for (const name of ["unknown", "dead", "running", "retryable", "accepted"]) {
    const e = el("n-" + name);
    e.textContent = ((name === "accepted" ? c.accepted_complete : c.complete) ? "" : "≥ ") + c[name];
    e.parentElement.classList.toggle("some", c[name] > 0 && (name === "unknown" || name === "dead"));
  }
  el("oldest").textContent = c.oldest_unresolved ? "The oldest unresolved operation was claimed " + ago(c.oldest_unresolved) + "." : "";
}

for (const card of document.querySelectorAll(".card")) {
  card.addEventListener("click", () => choose([card.dataset.states]));
}

// The list.

const filters = ["class", "name", "ref", "scope_label", "older", "newer"];

function choose(states) {
  for (const box of document.querySelectorAll("[name=state]")) box.checked = states.includes(box.value);
  for (const name of [...filters, "scope", "key"]) document.getElementById("f-" + name).value = "";
  el("filter").requestSubmit();
}

el("filter").addEventListener("submit", async (ev) => {
  ev.preventDefault();
  const q = new URLSearchParams();
  for (const box of document.querySelectorAll("[name=state]:checked")) q.append("state", box.value);
  for (const name of filters) {
    const text = document.getElementById("f-" + name).value.trim();
    if (text) q.set(name, text);
  }
  try {
    const scope = el("f-scope").value, key = el("f-key").value;
    if (key && !scope) throw new Error("A key needs its scope.");
    if (scope) {
      const digest = await call("POST", "v1/digest", { scope, key });
      q.set("scope_digest", digest.scope_digest);
      if (key) q.set("id", digest.id);
    }
    query = q;
    await list(0);
    say(el("message"), "");
  } catch (err) {
    fail(el("message"))(err);
  }
});

// list shows the page of the list that begins at an offset.
async function list(from) {
  const mine = ++turn;
  const q = new URLSearchParams(query);
  q.set("sort", sort);
  q.set("offset", from);
  q.set("limit", pageSize);
  const page = await call("GET", "v1/operations?" + q);
  if (mine !== turn) return;
  if (from > 0 && from >= page.total) return list(Math.max(0, (Math.ceil(page.total / pageSize) - 1) * pageSize));
  offset = from;
  updated = Date.now();
  fill(page.records);
  el("next").disabled = from + pageSize >= page.total;
  el("previous").disabled = from === 0;
  const total = page.total + (page.complete ? "" : " that were read; there are more: select fewer");
  el("page").textContent = page.total === 0 ? (page.complete ? "" : "there are more: select fewer") : (from + 1) + "–" + (from + page.records.length) + " of " + total;
  el("caption").textContent = "Operations: " + (query.getAll("state").join(", ") || "of every state");
  el("b-open").disabled = page.total === 0;
  for (const th of document.querySelectorAll("th[data-sort]")) {
    if (th.dataset.sort === sort) th.setAttribute("aria-sort", "ascending");
    else if ("-" + th.dataset.sort === sort) th.setAttribute("aria-sort", "descending");
    else th.removeAttribute("aria-sort");
  }
}

for (const th of document.querySelectorAll("th[data-sort]")) {
  th.firstElementChild.addEventListener("click", () => {
    sort = sort === th.dataset.sort ? "-" + sort : th.dataset.sort;
    list(0).catch(fail(el("message")));
  });
}

function fill(records) {
  const focused = document.activeElement?.dataset?.id;
  const rows = records.map((r) => {
    const tr = document.createElement("tr");
    const state = make("td", "");
    state.append(make("span", stateOf(r), "state " + stateOf(r)));
    const claimed = make("td", r.claimed_at ? ago(r.claimed_at) : "–");
    if (r.claimed_at) claimed.title = moment(r.claimed_at);
    const open = make("button", "…" + short(r.id));
    open.type = "button";
    open.dataset.id = r.id;
    open.title = r.id;
    open.setAttribute("aria-label", "Show operation " + short(r.id));
    open.addEventListener("click", () => show(r.id).catch(fail(el("message"))));
    const id = make("td", "");
    id.append(open);
    tr.append(state, claimed, id, make("td", r.class || "–"), make("td", r.name || "–"), make("td", encrypted(r) ? "(encrypted)" : r.ref || r.key || "–", "ref"),
      make("td", r.scope_label || r.scope || "–"), make("td", String(r.attempt), "right"), make("td", noteOf(r), "quiet"));
    return tr;
  });
  if (!rows.length) {
    const td = make("td", "None.", "none");
    td.colSpan = 9;
    rows.push(document.createElement("tr"));
    rows[0].append(td);
  }
  el("rows").replaceChildren(...rows);
  if (focused) for (const b of el("rows").querySelectorAll("button")) if (b.dataset.id === focused) b.focus();
}

el("next").addEventListener("click", () => { list(offset + pageSize).catch(fail(el("message"))); });
el("previous").addEventListener("click", () => { list(Math.max(0, offset - pageSize)).catch(fail(el("message"))); });

// One operation.

el("find").addEventListener("submit", async (ev) => {
  ev.preventDefault();
  try {
    let id = el("o-id").value.trim();
    if (!id) {
      if (!el("o-scope").value || !el("o-key").value) throw new Error("Which operation? Give its scope and key, or its ID.");
      id = (await call("POST", "v1/digest", { scope: el("o-scope").value, key: el("o-key").value })).id;
    }
    if (!/^[0-9a-f]{64}$/i.test(id)) throw new Error("An ID has 64 hexadecimal digits.");
    await show(id);
    say(el("message"), "");
  } catch (err) {
    fail(el("message"))(err);
  }
});

async function show(id, message) {
  present(await call("GET", "v1/operations/" + encodeURIComponent(id)));
  say(el("d-message"), message || "");
  history.replaceState(null, "", "#/operations/" + id);
  if (!el("detail").open) el("detail").showModal();
}

// describe lists the fields of a record in the dialog.
function describe(r) {
  const fields = [["State", stateOf(r) + (noteOf(r) ? ": " + noteOf(r) : "")], ["ID", r.id], ["Scope's digest", r.scope_digest],
    ["Attempt", r.attempt], ["Fence", r.fence], ["Class", r.class || ""], ["Name", r.name || ""], ["Reference", r.ref || ""], ["Scope's label", r.scope_label || ""], ["Fingerprint", r.fingerprint]];
  for (const [name, kept] of [["Kept scope", r.scope], ["Kept key", r.key]]) {
    if (kept) fields.push([name, kept]);
  }
  for (const [name, time] of [["Claimed", r.claimed_at], [{ unknown: "Marked unknown", retryable: "Released" }[r.state] || "Settled", r.settled_at], ["Result expires", r.expires_at], ["Forgotten", r.forget_at]]) {
    if (time) fields.push([name, moment(time)]);
  }
  el("d-fields").replaceChildren(...fields.flatMap(([name, value]) => [make("dt", name), make("dd", String(value))]));
  el("d-fields").querySelector("dd").className = "state " + stateOf(r);
}

// present puts a record into the dialog; the fence of a change is the one shown.
function present(r) {
  shown = r;
  describe(r);
  showHistory(r);
  const settled = r.state === "completed" || r.state === "failed" || r.state === "damaged"; // it can be expired
  const open = r.dead || r.state === "unknown";
  const job = r.state === "accepted" || r.state === "running" && !r.dead; // it can be cancelled, if it is one
  const kind = settled ? "expire" : job ? "cancel" : "resolve";
  el("d-result").hidden = !about.changes || Boolean(r.damage) || !(settled && !r.gone || encrypted(r));
  el("d-body").hidden = true;
  el("d-body").textContent = "";
  el("d-readonly").hidden = about.changes || !(open || settled || job);
  el("change").hidden = !about.changes || !(open || job || settled && !r.gone);
  for (const label of el("c-actions").querySelectorAll("label")) {
    label.hidden = label.dataset.for !== kind;
    label.firstElementChild.checked = !open && label.dataset.for === kind;
  }
  for (const name of ["status", "type", "body", "reason", "confirm"]) el("c-" + name).value = "";
  el("c-books").hidden = !open;
  el("c-question").textContent = settled ? "Change the result?" : job ? "End the job?" : "Was it executed?";
  el("c-want").textContent = short(r.id);
  chosen();
}

// showHistory shows what went wrong with an operation, oldest first.
function showHistory(r) {
  const lines = (r.history || []).map((e) => make("li", moment(e.at) + " – " + (e.sealed ? "encrypted with a key that this process does not have" : [
    "attempt " + e.attempt, e.event, e.reason, e.process ? "process " + e.process + " on " + e.host : "", e.status ? "status " + e.status : "", e.by, e.text, e.error,
  ].filter(Boolean).join(", "))));
  if (r.no_history) lines.push(make("li", "The store has no histories."));
  if (r.history_error) lines.push(make("li", "The history cannot be read: " + r.history_error));
  el("d-history").replaceChildren(...lines);
  el("d-history-title").hidden = el("d-history").hidden = !lines.length;
}

el("d-close").addEventListener("click", () => el("detail").close());
el("detail").addEventListener("close", () => {
  shown = null;
  el("d-body").textContent = "";
  history.replaceState(null, "", location.pathname + location.search);
});

el("d-show").addEventListener("click", async () => {
  const id = shown.id;
  try {
    const r = await call("GET", "v1/operations/" + id + "?result=true");
    if (shown?.id !== id) return; // another one is shown by now, or none
    describe(r);
    if (!r.response && !r.result) return; // only its names were encrypted
    el("d-body").textContent = r.response ? written(r.response) : readable(r.result || "");
    el("d-body").hidden = false;
    el("d-body").focus();
  } catch (err) {
    fail(el("d-message"))(err);
  }
});

// written shows a response as it was sent, more or less.
function written(response) {
  const lines = ["HTTP " + response.status];
  for (const [name, values] of Object.entries(response.header || {})) {
    for (const value of values) lines.push(name + ": " + value);
  }
  return lines.join("\n") + "\n\n" + readable(response.body || "");
}

// readable shows bytes as text, and invalid ones as \xNN.
function readable(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    text = String.fromCharCode(...bytes.slice(0, 60000));
  }
  return text.replace(/[^\P{C}\n\t]/gu, (c) => "\\x" + c.codePointAt(0).toString(16).padStart(2, "0")) || "(empty)";
}

// A change.

const action = () => el("change").elements.action.value;

function chosen() {
  const a = action();
  el("c-response").hidden = a !== "completed" && a !== "failed";
  el("c-class-label").hidden = about.classes.length === 0 || a === "expire" || a === "cancel";
}
el("c-actions").addEventListener("change", chosen);

function wanted(dryRun) {
  const a = action();
  if (!a) throw new Error("Was it executed? Choose an answer.");
  if (!el("c-reason").value.trim()) throw new Error("A reason is required, for the audit.");
  if (!about.who && !el("c-actor").value.trim()) throw new Error("Your name is required, for the audit.");
  const want = short(shown.id);
  if (!dryRun && el("c-confirm").value.trim() !== want) throw new Error("Not confirmed, and nothing was changed. Type " + want + ".");
  const change = { fence: shown.fence, reason: el("c-reason").value.trim(), actor: el("c-actor").value.trim(), dry_run: dryRun };
  if (a !== "expire" && a !== "cancel" && el("c-class").value) change.class = el("c-class").value;
  if (a === "completed" || a === "failed") {
    change.as = a;
    const status = el("c-status").value.trim();
    if (status) {
      if (!/^[2-9]\d\d$/.test(status)) throw new Error("A response's status is 200 to 999.");
      change.response = { status: Number(status), header: {}, body: base64(el("c-body").value) };
      if (el("c-type").value.trim()) change.response.header["Content-Type"] = [el("c-type").value.trim()];
    } else if (el("c-body").value) {
      throw new Error("A response needs a status.");
    }
  }
  return [a === "completed" || a === "failed" ? "resolve" : a, change];
}

function base64(text) {
  let s = "";
  for (const byte of new TextEncoder().encode(text)) s += String.fromCharCode(byte);
  return btoa(s);
}

async function apply(dryRun) {
  const id = shown.id;
  try {
    const [path, change] = wanted(dryRun);
    const entry = await call("POST", "v1/operations/" + id + "/" + path, change);
    localStorage.setItem("stet-actor", change.actor);
    const text = "it was " + entry.from.state + " and " + (dryRun ? "would be " : "is now ") + entry.to + ".";
    if (dryRun) {
      if (shown?.id === id) say(el("d-message"), "Nothing was changed: " + text);
    } else {
      if (shown?.id === id) await show(id, "Done: " + text);
      refresh();
    }
  } catch (err) {
    if (shown?.id !== id) return fail(el("message"))(err); // another one is shown by now, or none
    if (err.doc?.now) present(err.doc.now);
    fail(el("d-message"))(err);
  }
  el("d-message").scrollIntoView({ block: "nearest" });
}

el("c-try").addEventListener("click", () => apply(true));
el("change").addEventListener("submit", (ev) => { ev.preventDefault(); apply(false); });

// Refreshing.

async function refresh() {
  try {
    await Promise.all([count().then(draw), list(offset)]);
    if (el("message").dataset.stale) say(el("message"), "");
    delete el("message").dataset.stale;
  } catch (err) {
    el("message").dataset.stale = "true";
    fail(el("message"))(err);
  }
}

// The next one begins when the one before has ended.
async function tick() {
  if (el("auto").checked && !el("work").hidden && !el("detail").open && !el("bulk").open && document.visibilityState === "visible" && query) await refresh();
  setTimeout(tick, refreshEvery);
}

// age says how old the list is, and whether the server answers.
function age() {
  const seconds = Math.round((Date.now() - updated) / 1000), silent = el("message").dataset.stale === "true";
  el("age").textContent = updated === 0 ? "" : "last updated " + seconds + " s ago" + (silent ? "; the server does not answer" : "");
  el("age").classList.toggle("bad", silent);
}

start();
setInterval(age, 1000);
setTimeout(tick, refreshEvery);
