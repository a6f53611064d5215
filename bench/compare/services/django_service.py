"""A service in Django, protected by the library of the variable WAY, as its README says."""

import os
import socketserver
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import django
from django.conf import settings
from pay import LEASE, listening, pay

REDIS = os.environ["REDIS_URL"]
MIDDLEWARE = {
    "drf_idempotency": "drf_idempotency.middleware.IdempotencyMiddleware",
    "django_idempotency_key": "idempotency_key.middleware.IdempotencyKeyMiddleware",
}[os.environ["WAY"]]

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"], DATA_UPLOAD_MAX_MEMORY_SIZE=None, LOGGING_CONFIG=None,
    MIDDLEWARE=[MIDDLEWARE], INSTALLED_APPS=["rest_framework"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS}},
    IDEMPOTENCY={"BACKEND": "drf_idempotency.backends.redis.RedisBackend", "BACKEND_OPTIONS": {"url": REDIS}, "LOCK_TTL_SECONDS": int(LEASE)},
    IDEMPOTENCY_KEY={
        "CONFLICT_STATUS_CODE": None,  # replays with the first status
        "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
        "LOCK": {"CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock", "LOCATION": REDIS, "TTL": LEASE},
    },
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402: after the settings
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402


@csrf_exempt
def handle(request):
    status, headers, body = pay(request.headers["Idempotency-Key"], request.headers["X-Account"], request.body)
    return HttpResponse(body, status=status, headers=headers)


urlpatterns = [path("payments", handle), path("refunds", handle)]


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


server = Server(("127.0.0.1", 0), Quiet)
server.set_app(get_wsgi_application())
listening(server.socket)
server.serve_forever()
