"""Lists in pages by cursor: stable while rows are added, without counting them."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination


class CursorPages(CursorPagination):
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    cursor_query_param = "cursor"
    ordering = "-id"
