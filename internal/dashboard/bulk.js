"use strict";
// Changes of all operations of a list, one after the other, each with the fence that was listed.

const most = 10000; // of a page of the API

let chosenRows = [];  // the rows of the dialog: { record, result }
let stopped = false;

// possible reports whether an action can be made of a record; the API decides.
function possible(action, r) {
  const settled = r.state === "completed" || r.state === "failed";
  if (action === "expire") return r.state === "damaged" || settled && !r.gone;
  if (action === "cancel") return r.state === "accepted" || r.state === "running" && !r.dead;
  return r.dead || r.state === "unknown";
}

// choice lists the operations that the action is possible for.
async function choice() {
  const max = Number(el("b-max").value);
  chosenRows = [];
  el("b-rows").replaceChildren();
  el("b-want").textContent = "–";
  if (!Number.isInteger(max) || max < 1 || max > most) throw new Error("At most: give a number from 1 to " + most + ".");
  const q = new URLSearchParams(query);
  q.set("limit", most);
  const page = await call("GET", "v1/operations?" + q);
  const records = page.records.filter((r) => possible(el("b-action").value, r));
  if (!page.complete || page.total > most || records.length > max) throw new Error("There are more than " + Math.min(max, most) + " such operations. Select fewer, or allow more.");
  chosenRows = records.map((record) => ({ record, result: make("td", "", "quiet") }));
  el("b-rows").replaceChildren(...chosenRows.map(({ record: r, result }) => {
    const tr = document.createElement("tr");
    tr.append(make("td", "…" + short(r.id), "mono"), make("td", r.name || r.class || "–"), make("td", r.ref || "–", "ref"), make("td", r.scope_label || "–"), result);
    return tr;
  }));
  el("b-want").textContent = String(records.length);
  say(el("b-message"), records.length ? "" : "The action is possible for none of the list.");
}

function listChoice() {
  return choice().catch(fail(el("b-message")));
}

el("b-open").addEventListener("click", () => {
  el("b-confirm").value = el("b-reason").value = "";
  el("b-progress").hidden = true;
  el("bulk").showModal();
  listChoice();
});
el("b-close").addEventListener("click", () => el("bulk").close());
el("bulk").addEventListener("close", () => { stopped = true; refresh(); });
el("b-stop").addEventListener("click", () => { stopped = true; });
el("b-action").addEventListener("change", listChoice);
el("b-max").addEventListener("change", listChoice);

// changeAll makes the change of each listed operation, and writes its result into its row.
async function changeAll(dryRun) {
  const reason = el("b-reason").value.trim(), actor = el("b-actor").value.trim(), action = el("b-action").value;
  if (!chosenRows.length) throw new Error("The action is possible for none of the list.");
  if (!reason) throw new Error("A reason is required, for the audit.");
  if (!about.who && !actor) throw new Error("Your name is required, for the audit.");
  if (!dryRun && el("b-confirm").value.trim() !== String(chosenRows.length)) throw new Error("Not confirmed, and nothing was changed. Type " + chosenRows.length + ".");
  localStorage.setItem("stet-actor", actor);
  const resolves = action === "completed" || action === "failed", path = resolves ? "resolve" : action;
  let done = 0, failed = 0;
  stopped = false;
  const bar = el("b-progress");
  bar.hidden = false;
  bar.max = chosenRows.length;
  for (const { record: r, result } of chosenRows) {
    if (stopped) break;
    const change = { fence: r.fence, reason, actor, dry_run: dryRun };
    if (resolves) change.as = action;
    if ((resolves || action === "release") && about.classes.includes(r.class)) change.class = r.class; // its policy has the retention
    try {
      const entry = await call("POST", "v1/operations/" + r.id + "/" + path, change);
      result.textContent = (dryRun ? "would be " : "is ") + entry.to;
      done++;
    } catch (err) {
      result.textContent = "not changed: " + err.message;
      failed++;
    }
    bar.value = done + failed;
    say(el("b-message"), (done + failed) + " of " + chosenRows.length + (failed ? ", " + failed + " not changed" : ""), failed > 0);
  }
  say(el("b-message"), (stopped ? "Stopped: " : "") + done + " of " + chosenRows.length + (dryRun ? " would be changed" : " were changed") + (failed ? ", " + failed + " were not; see their rows" : "") + ".", failed > 0);
}

async function runAll(dryRun) {
  for (const id of ["b-try", "b-do", "b-action", "b-max"]) document.getElementById(id).disabled = true;
  el("b-stop").disabled = false;
  try {
    await changeAll(dryRun);
  } catch (err) {
    fail(el("b-message"))(err);
  }
  for (const id of ["b-try", "b-do", "b-action", "b-max"]) document.getElementById(id).disabled = false;
  el("b-stop").disabled = true;
}

el("b-try").addEventListener("click", () => runAll(true));
el("b-form").addEventListener("submit", (ev) => { ev.preventDefault(); runAll(false); });
