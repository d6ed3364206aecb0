"""The fleet's addresses under /api/v1/."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from fleet.api import resources
from fleet.api.agents import EnrollView, HeartbeatsView
from fleet.api.events import EventsView

router = SimpleRouter(trailing_slash=False)
router.register("nodes", resources.NodeViewSet, "node")
router.register("gpus", resources.GpuViewSet, "gpu")
router.register("findings", resources.FindingViewSet, "finding")
router.register("runs", resources.RunViewSet, "run")
router.register("leases", resources.LeaseViewSet, "lease")
router.register("orders", resources.OrderViewSet, "order")

urlpatterns = [
    path("events", EventsView.as_view(), name="events"),
    path("fleet/enroll", EnrollView.as_view(), name="enroll"),
    path("fleet/heartbeats", HeartbeatsView.as_view(), name="heartbeats"),
    path("fleet/", include(router.urls)),
]
