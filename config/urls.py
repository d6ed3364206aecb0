"""The map of addresses: which room answers where."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("fleet.api.urls")),
    path("api/v1/", include("sla.api.urls")),
    path("api/v1/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/docs", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
]

handler400 = "fleet.api.problems.bad_request"
handler404 = "fleet.api.problems.page_not_found"
handler500 = "fleet.api.problems.server_error"
