"""Django's settings: wires the rooms together from config.environment, holds no logic."""

from __future__ import annotations

import warnings
from datetime import timedelta

from config import environment as _environment
from config.database import databases
from config.embedded import find_place

ENVIRONMENT = _environment.load_environment()
BASE_DIR = _environment.BASE_DIR
VAR_DIR = ENVIRONMENT.var_dir
EMBEDDED_PLACE = None if ENVIRONMENT.database_url and ENVIRONMENT.redis_url else find_place(VAR_DIR)
EMBEDDED_SERVICES = tuple(
    name
    for name, url in (("postgres", ENVIRONMENT.database_url), ("valkey", ENVIRONMENT.redis_url))
    if url is None
)

# Never on: a debug page tells a stranger too much. Errors go to the log with their request id.
DEBUG = False
SECRET_KEY = (
    ENVIRONMENT.secret_key.get_secret_value()
    if ENVIRONMENT.secret_key
    else _environment.kept_secret(VAR_DIR, "secret_key")
)
TOKEN_PEPPERS = _environment.token_peppers(ENVIRONMENT)
ALLOWED_HOSTS = ENVIRONMENT.allowed_hosts
CSRF_TRUSTED_ORIGINS = ENVIRONMENT.csrf_trusted_origins
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENVIRONMENT.https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENVIRONMENT.https else None
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"

INSTALLED_APPS = [
    "config",
    "fleet",
    "sla",
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "pgtrigger",
    "django_celery_beat",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "fleet.middleware.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "fleet.middleware.TenantMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = databases(ENVIRONMENT, EMBEDDED_PLACE)
DATABASE_ROUTERS = ["config.database.OwnerMigrates"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "fleet.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "admin:login"

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
# Files come from the packages where nobody ran collectstatic, so a clone has its admin theme.
WHITENOISE_USE_FINDERS = True
warnings.filterwarnings("ignore", message="No directory at", category=UserWarning)
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
]

# A batch of events: 1,000 of 64 KiB and the brackets around them (fleet.api.events counts).
DATA_UPLOAD_MAX_MEMORY_SIZE = 66 * 1024 * 1024

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["fleet.api.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["fleet.api.authentication.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "fleet.api.pagination.CursorPages",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "fleet.api.problems.problem_response",
    "UNAUTHENTICATED_USER": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Unbroken",
    "DESCRIPTION": "Training that never rolls back, and the books that prove it.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PUBLIC": True,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

REDIS_URL = (
    ENVIRONMENT.redis_url.get_secret_value()
    if ENVIRONMENT.redis_url
    else EMBEDDED_PLACE.redis_url
    if EMBEDDED_PLACE
    else ""
)
CELERY_BROKER_URL = _environment.celery_broker(REDIS_URL)
# Tasks are sweepers over what is due, so a message lost with the broker costs delay only.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = CELERY_EVENT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 300, "socket_timeout": 10}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {
    "sla.judge_due_runs": {"task": "sla.judge_due_runs", "schedule": timedelta(seconds=2)},
    "sla.close_due_years": {"task": "sla.close_due_years", "schedule": timedelta(minutes=1)},
}
# A message that nobody fetched within a period is stale: the next one asks the same question.
for _entry in CELERY_BEAT_SCHEDULE.values():
    _entry["options"] = {"expires": 30}  # seconds

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": ENVIRONMENT.log_level},
}

UNFOLD = {"SITE_TITLE": "Unbroken", "SITE_HEADER": "Unbroken", "SITE_SYMBOL": "all_inclusive"}
