"""Idempotent requests in one transaction of PostgreSQL: the business write and the answer are one commit.

Without a framework: stet.operation. For FastAPI and Starlette: stet.asgi.Idempotent. For Flask: stet.flask.Idempotent. Over psycopg
(stet.psycopg), asyncpg (stet.asyncpg) or SQLAlchemy (stet.sqlalchemy). The functions that they call are
those of docs/sql.md, made by stet.migrate, "python -m stet migrate up" or "stet migrate up".
"""

from .canonical import canonical_json
from .emit import AsyncEmit, Emit
from .fingerprint import fingerprint, request_fingerprint
from .operations import AsyncOperation, Operation, OperationError, Refusal, operation
from .options import Options
from .schema import amigrate, migrate
from .sql import DatabaseError

__all__ = ["AsyncEmit", "AsyncOperation", "DatabaseError", "Emit", "Operation", "OperationError", "Options", "Refusal", "amigrate", "canonical_json", "fingerprint", "migrate",
           "operation", "request_fingerprint"]
__version__ = "0.1.0.dev0"
