import stet
from django.db import migrations


def create(apps, editor):
    stet.migrate(editor.connection, role="shop")


class Migration(migrations.Migration):
    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
