"""Pays an order once.

    DATABASE_URL=postgres://shop@localhost/shop python3 pay.py order-1 4200
"""

import os
import sys

import psycopg
import stet

order, amount = sys.argv[1], int(sys.argv[2])
connection = psycopg.connect(os.environ["DATABASE_URL"])
with stet.operation(connection, scope="acct_1", key=order, payload={"amount": amount}) as op:
    if not op.replayed:
        row = connection.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
        op.result = {"payment": row[0], "amount": amount}
print("replayed" if op.replayed else "paid", op.result)
