"""The payments service of service.py, in Django: a function view, or a view of Django REST framework."""

from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from service import URL, messages, mortal, options, response, statements

parts = urlsplit(URL)
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=["django.middleware.common.CommonMiddleware"], USE_TZ=True, SECRET_KEY="of the tests",
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port,
                           "ATOMIC_REQUESTS": True}},
    LOGGING={"version": 1, "disable_existing_loggers": False, "handlers": {"console": {"class": "logging.StreamHandler"}}, "loggers": {"django.request": {"handlers": ["console"]}}},
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_PERMISSION_CLASSES": [], "UNAUTHENTICATED_USER": None})
django.setup()

import json  # noqa: E402

from django.db import DatabaseError, connection  # noqa: E402
from django.http import Http404, HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.decorators import method_decorator  # noqa: E402
from rest_framework.exceptions import NotFound  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from stet.django import Idempotent  # noqa: E402

idempotent = Idempotent(**options(lambda request: request.headers.get("X-Account")))
mortal(idempotent.database)


def write(do: str, amount: int) -> int:
    cursor = connection.connection.cursor() if do.endswith("-by-connection") else connection.cursor()
    if do == "swallow":
        try:
            cursor.execute("SELECT 1/0")
        except DatabaseError:
            return 0
    number = 0
    for sql, arguments in statements(do, amount, "%s"):
        cursor.execute(sql, arguments)
        number = number or (cursor.fetchone()[0] if cursor.description else 0)
    return number


def paid(request: Any, amount: int, missing: type[Exception]) -> HttpResponse:
    do = request.headers.get("X-Do", "")
    number = write(do, amount)
    for message, more in messages(do, amount):
        idempotent.emit(request)(*message, **more)
    if do == "raise":
        raise RuntimeError("broke off")
    if do == "abort":
        raise missing("no such card")
    status, headers, body = response(do, number, amount)
    made = HttpResponse(body, status=status)
    for name, value in headers:
        if name == "Set-Cookie":
            made.cookies.load(value)
        else:
            made[name] = f"{made[name]}, {value}" if name in made and name == "Warning" else value
    return made


@idempotent
def pay(request: HttpRequest) -> HttpResponse:
    return paid(request, json.loads(request.body)["amount"], Http404)


@method_decorator(idempotent, name="dispatch")
class Pay(APIView):
    def post(self, request: Any) -> Any:
        if request.headers.get("X-Do") == "rest":
            return Response({"payment": write("", request.data["amount"])}, 201, headers={"Location": "/payments/1"})
        return paid(request, request.data["amount"], NotFound)


def unmarked(request: HttpRequest) -> HttpResponse:
    return HttpResponse(idempotent.emit(request)("never"))


def bare(request: HttpRequest) -> HttpResponse:
    return HttpResponse("never settled")


urlpatterns: list[Any] = [path("unmarked", unmarked), path("bare", bare)]


def application(kind: str) -> Any:
    from django.core.wsgi import get_wsgi_application

    urlpatterns.append(path("payments", pay if kind == "view" else Pay.as_view()))
    return get_wsgi_application()
