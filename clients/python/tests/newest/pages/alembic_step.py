import stet
from alembic import op


def upgrade():
    stet.migrate(op.get_bind(), role="shop")
