"""What the lists of the fleet may be narrowed by, in the words of the resources."""

from __future__ import annotations

import django_filters as filters

from fleet.models.choices import FindingState, NodeState, OrderKind, OrderState, RunState


class NodeFilter(filters.FilterSet):
    name = filters.CharFilter()
    name_starts = filters.CharFilter("name", "startswith")
    cluster = filters.CharFilter("cluster__name")
    state = filters.MultipleChoiceFilter(choices=NodeState)
    cordoned = filters.BooleanFilter("cordoned_at", "isnull", exclude=True)


class GpuFilter(filters.FilterSet):
    uuid = filters.CharFilter()
    serial = filters.CharFilter()
    node = filters.CharFilter("node__name")


class FindingFilter(filters.FilterSet):
    state = filters.MultipleChoiceFilter(choices=FindingState)
    severity = filters.CharFilter()
    node = filters.CharFilter("node__name")
    gpu = filters.CharFilter("gpu_uuid")


class RunFilter(filters.FilterSet):
    state = filters.MultipleChoiceFilter(choices=RunState)
    cluster = filters.CharFilter("cluster__name")
    contract = filters.CharFilter("contract_number")


class LeaseFilter(filters.FilterSet):
    node = filters.CharFilter("node__name")
    run = filters.CharFilter("run__run")
    live = filters.BooleanFilter("returned_at", "isnull")


class OrderFilter(filters.FilterSet):
    node = filters.CharFilter("node__name")
    run = filters.CharFilter("run__run")
    kind = filters.ChoiceFilter(choices=OrderKind)
    state = filters.MultipleChoiceFilter(choices=OrderState)
