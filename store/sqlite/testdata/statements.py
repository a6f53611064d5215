"""A service that shares its SQLite file with Go, by nothing but docs/sql-sqlite.md.

statements.py PAGE FILE: reads orders from standard input, one JSON object a line, and says what
came of each."""

import json
import os
import re
import signal
import sys

with open(sys.argv[1], encoding="utf-8") as page:
    text = page.read()
SQL = dict(re.findall(r"```sql\n-- ([a-z ]+)\n(.*?)```", text, re.S))
(program,) = re.findall(r"```python\n(.*?)```", text, re.S)
exec(compile(program, "docs/sql-sqlite.md", "exec"))  # with SQL, as the page says


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def charge(db, o):
    """Charges o's key once. It dies at o's point: "charged" (before settle), "settled" (before COMMIT) or "committed"."""

    def work(db):
        db.execute("INSERT INTO charges VALUES (?)", (o["key"],))
        if o.get("die") == "charged":
            die()
        return o.get("status", 201), o.get("headers", {}), "text/plain", o.get("body", "by Python").encode("latin-1")

    # What is called at the beginning of each statement.
    db.set_trace_callback(lambda sql: die() if o.get("die") == "settled" and sql == "COMMIT" else None)
    finger = bytes.fromhex(o["fingerprint"]) if "fingerprint" in o else fingerprint(b"")
    found = once(db, o["scope"], o["key"], finger, work)
    if o.get("die") == "committed":
        die()
    if found is None:
        return {"action": "run"}
    headers, content_type = headers_of(found["head"], found["content_type"])
    return {**{name: found[name] for name in ("action", "state", "status", "fence", "attempt")},
        "headers": headers, "content_type": content_type, "body": found["body"].hex()}


def compute(_, o):
    """The IDs and fingerprints of docs/vectors.json."""
    return {"ids": [[part.hex() for part in ids(v["Scope"], v["Key"], v["Namespace"])] for v in o["ids"]],
        "fingerprints": [fingerprint(*(bytes.fromhex(p) for p in v["parts"]), version=v["version"]).hex() for v in o["fingerprints"]]}


def forget(db, o):
    """Commits a charge without an outcome, against the rules."""
    id, of_scope = ids(o["scope"], o["key"])
    now = time.time_ns() // 1000
    db.execute("BEGIN IMMEDIATE")
    db.execute(SQL["begin"], {"id": id, "scope": of_scope, "fingerprint": fingerprint(b""), "owner": os.urandom(16), "now": now,
        "lease": now + o["lease"], "class": "", "name": "", "ref": ""}).fetchall()
    db.execute("INSERT INTO charges VALUES (?)", (o["key"],))
    db.execute("COMMIT")
    return {}


def look(db, o):
    """Looks outside of a transaction."""
    found = db.execute(SQL["look"], {"id": ids(o["scope"], o["key"])[0], "fingerprint": fingerprint(b""), "now": time.time_ns() // 1000}).fetchall()
    return {"action": found[0]["action"]}


def hurry(db, o):
    """Waits no longer for other writers than that many milliseconds."""
    db.execute(f"PRAGMA busy_timeout = {int(o['ms'])}")
    return {}


def settle(db, o):
    """Settles a claim that Go has made, and charges in the same transaction."""
    _, id, owner, fence = o["claim"].split(".")
    now = time.time_ns() // 1000
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO charges VALUES (?)", (o["key"],))
    n = db.execute(SQL["settle"], {"fence": int(fence, 16), "id": bytes.fromhex(id), "owner": bytes.fromhex(owner), "now": now, "failed": 0, "gone": 0,
        "status": 201, "content_type": None, "head": None, "body": b"by Python", "expires": now + SECOND * 60, "forget": now + SECOND * 60}).rowcount
    db.execute("COMMIT" if n == 1 else "ROLLBACK")
    return {"rows": n}


try:
    db = connect(sys.argv[2])
except RuntimeError as e:
    print(json.dumps({"error": str(e)}), flush=True)
    sys.exit(1)
for line in sys.stdin:
    o = json.loads(line)
    try:
        said = {"charge": charge, "compute": compute, "forget": forget, "hurry": hurry, "look": look, "settle": settle}[o["do"]](db, o)
    except (sqlite3.OperationalError, RuntimeError) as e:  # busy, or another version
        said = {"error": str(e)}
    print(json.dumps(said), flush=True)
