"""The Celery application; tasks are found in each app's tasks.py."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("unbroken")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def join_embedded(**_: Any) -> None:
    """The broker has to run before a worker or beat dials it, or a message is sent."""
    from django.conf import settings

    from config import embedded

    if settings.EMBEDDED_PLACE is not None:
        embedded.join(settings.EMBEDDED_PLACE, services=settings.EMBEDDED_SERVICES)


signals.celeryd_init.connect(join_embedded)
signals.beat_init.connect(join_embedded)
signals.before_task_publish.connect(join_embedded)
