"""Payments in Django.

    PGUSER=shop PGDATABASE=shop python3 shop.py
"""

import json
import os

import django
from django.conf import settings

settings.configure(
    DEBUG=True, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"],
                           "HOST": os.environ.get("PGHOST", "localhost"), "PORT": os.environ.get("PGPORT", "5432")}})
django.setup()

from django.db import models
from django.http import JsonResponse
from django.urls import path
from stet.django import Idempotent


class Payment(models.Model):
    amount = models.IntegerField()

    class Meta:
        app_label, db_table = "shop", "payments"


idempotent = Idempotent(scope=lambda request: request.headers.get("X-Account"))  # as your authentication has established it


@idempotent
def pay(request):
    payment = Payment.objects.create(amount=json.loads(request.body)["amount"])
    return JsonResponse({"payment": payment.pk, "amount": payment.amount}, status=201)


urlpatterns = [path("payments", pay)]

if __name__ == "__main__":
    from wsgiref.simple_server import make_server

    from django.core.wsgi import get_wsgi_application

    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), get_wsgi_application()) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
