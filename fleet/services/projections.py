"""Keeps the rows that are derived from events: runs and health findings, as of the latest word.

Called with events that are new and in force, in the transaction that stores them. The order of
arrival does not matter: an older word never overwrites a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.domain import facts
from fleet.domain.envelopes import Reading
from fleet.domain.sources import place_of
from fleet.models import Cluster, Gpu, HealthFinding, Node, Run
from fleet.models.choices import FindingState, RunState
from runtime.events import MOVEMENT_TYPES

RUN_TYPES: Final = MOVEMENT_TYPES | {
    "run.started",
    "run.support_changed",
    "run.progress",
    "failure.detected",
    "run.finished",
}
RUN_FIELDS: Final = [
    "cluster",
    "contract_number",
    "state",
    "state_us",
    "epoch",
    "committed_step",
    "progress_us",
    "final_step",
    "step_seconds",
    "samples_per_second",
    "tokens_per_second",
    "failures",
    "movements",
    "world_size",
    "spares",
    "mesh",
    "priority",
    "framework",
    "gpu_model",
    "is_supported",
]


def project(*, tenant_id: int, readings: Sequence[Reading]) -> None:
    ordered = sorted(readings, key=lambda reading: (reading.time_us or 0, reading.event_id))
    about_runs = [r for r in ordered if r.event_type in RUN_TYPES]
    findings = [r for r in ordered if r.event_type == "health.finding"]
    if about_runs:
        _project_runs(tenant_id, about_runs)
    if findings:
        _project_findings(tenant_id, findings)


def _data(reading: Reading) -> Mapping[str, Any]:
    data = reading.fields.get("data")
    return data if isinstance(data, Mapping) else {}


def _project_runs(tenant_id: int, readings: Sequence[Reading]) -> None:
    names = {reading.run for reading in readings}
    _create_started(tenant_id, readings)
    runs = {
        run.run: run
        for run in Run.objects.filter(tenant_id=tenant_id, run__in=names)
        .order_by("id")
        .select_for_update()
    }
    for reading in readings:
        run = runs.get(reading.run)
        if run is not None:
            _apply(run, reading)
    if runs:
        Run.objects.bulk_update(runs.values(), RUN_FIELDS)


def _create_started(tenant_id: int, readings: Sequence[Reading]) -> None:
    """A run exists from its first `run.started` on, where it was not registered before."""
    clusters: dict[str, str] = {}
    for reading in readings:
        place = place_of(reading.source)
        if reading.event_type == "run.started" and place is not None:
            clusters.setdefault(reading.run, place.cluster)
    if not clusters:
        return
    ids = dict(
        Cluster.objects.filter(tenant_id=tenant_id, name__in=set(clusters.values())).values_list(
            "name", "id"
        )
    )
    Run.objects.bulk_create(
        [
            Run(tenant_id=tenant_id, cluster_id=ids[cluster], run=name)
            for name, cluster in sorted(clusters.items())
            if cluster in ids
        ],
        ignore_conflicts=True,
    )


def _apply(run: Run, reading: Reading) -> None:
    data, time_us = _data(reading), reading.time_us or 0
    if reading.event_type == "run.started":
        _apply_started(run, data, time_us)
    elif reading.event_type == "run.support_changed":
        run.is_supported = facts.flag(data, "supported")
    elif reading.event_type == "run.finished":
        _apply_finished(run, data, time_us)
    elif reading.event_type == "run.progress":
        _apply_position(run, facts.whole(data, "epoch"), _step(data), time_us)
        for name in ("step_seconds", "samples_per_second", "tokens_per_second"):
            setattr(run, name, facts.measure(data, name))
    elif reading.event_type == "failure.detected":
        run.failures += 1
        _apply_position(run, facts.whole(data, "epoch"), _step(data), time_us)
    else:
        run.movements += 1
        resumed = facts.whole(data, "resumed_step")
        step = None if resumed is None else max(resumed - 1, 0)
        _apply_position(run, facts.whole(data, "to_epoch"), step, time_us)


def _step(data: Mapping[str, Any]) -> int | None:
    return facts.whole(data, "committed_step")


def _apply_position(run: Run, epoch: int | None, step: int | None, time_us: int) -> None:
    """Where the run is: a later epoch wins, then the later word in it."""
    if epoch is None or step is None or (epoch, time_us) < (run.epoch, run.progress_us):
        return
    run.epoch, run.committed_step, run.progress_us = epoch, step, time_us


def _apply_started(run: Run, data: Mapping[str, Any], time_us: int) -> None:
    if time_us < run.state_us:
        return
    run.state, run.state_us = RunState.RUNNING, time_us
    run.contract_number = facts.text(data, "contract", 100)
    run.world_size = facts.whole(data, "world_size", facts.LARGEST_INTEGER)
    run.spares = facts.whole(data, "spares", facts.LARGEST_INTEGER)
    run.mesh = facts.mapping(data, "mesh")
    run.priority = facts.signed(data, "priority") or 0
    run.framework = facts.text(data, "framework", 200)
    run.gpu_model = facts.text(data, "gpu_model", 100)
    run.is_supported = facts.flag(data, "supported")


def _apply_finished(run: Run, data: Mapping[str, Any], time_us: int) -> None:
    status = data.get("status")
    ends = {RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED, RunState.PARKED}
    if status in {str(end) for end in ends} and time_us >= run.state_us:
        run.state, run.state_us = RunState(status), time_us
        run.final_step = _step(data)


def _project_findings(tenant_id: int, readings: Sequence[Reading]) -> None:
    latest: dict[str, Reading] = {}
    for reading in readings:  # by time, so the last one stands
        finding_id = facts.text(_data(reading), "finding_id", 200)
        if finding_id:
            latest[finding_id] = reading
    known = {
        finding.finding_id: finding
        for finding in HealthFinding.objects.filter(
            tenant_id=tenant_id, finding_id__in=latest
        ).select_for_update()
    }
    nodes = _nodes_named(tenant_id, latest.values())
    gpus = _gpus_named(tenant_id, latest.values())
    changed = []
    for finding_id, reading in sorted(latest.items()):
        time_us = reading.time_us or 0
        finding = known.get(finding_id) or HealthFinding(
            tenant_id=tenant_id, finding_id=finding_id, opened_us=time_us
        )
        if finding.pk is None or time_us >= finding.changed_us:
            _apply_finding(finding, reading, nodes, gpus)
            changed.append(finding)
    HealthFinding.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["tenant", "finding_id"],
        update_fields=FINDING_FIELDS,
    )


FINDING_FIELDS: Final = [
    "node",
    "gpu",
    "gpu_uuid",
    "state",
    "check_name",
    "stage",
    "severity",
    "memory",
    "action",
    "evidence",
    "policy_version",
    "changed_us",
]


def _apply_finding(
    finding: HealthFinding,
    reading: Reading,
    nodes: dict[tuple[str, str], Node],
    gpus: dict[str, Gpu],
) -> None:
    data = _data(reading)
    state = data.get("state")
    finding.state = FindingState(state) if state in FindingState.values else FindingState.UPDATED
    finding.node = nodes.get(_node_key(reading))
    finding.gpu_uuid = _gpu_uuid(reading)
    finding.gpu = gpus.get(finding.gpu_uuid)
    finding.check_name = facts.text(data, "check", 100)
    finding.stage = facts.text(data, "stage", 100)
    finding.severity = facts.text(data, "severity", 20)
    finding.memory = facts.text(data, "memory", 20)
    finding.action = facts.text(data, "action", 20)
    finding.evidence = facts.mapping(data, "evidence")
    finding.policy_version = facts.text(data, "policy_version", 50)
    finding.changed_us = reading.time_us or 0


def _node_key(reading: Reading) -> tuple[str, str]:
    place = place_of(reading.source)
    return (place.cluster if place else "", facts.text(_data(reading), "node", 200))


def _gpu_uuid(reading: Reading) -> str:
    gpu = _data(reading).get("gpu")
    return facts.text(gpu, "uuid", 100) if isinstance(gpu, Mapping) else ""


def _nodes_named(tenant_id: int, readings: Sequence[Reading] | Any) -> dict[tuple[str, str], Node]:
    keys = {_node_key(reading) for reading in readings}
    rows = Node.objects.filter(
        tenant_id=tenant_id,
        cluster__name__in={cluster for cluster, _ in keys},
        name__in={name for _, name in keys},
    ).select_related("cluster")
    return {(node.cluster.name, node.name): node for node in rows}


def _gpus_named(tenant_id: int, readings: Sequence[Reading] | Any) -> dict[str, Gpu]:
    uuids = {_gpu_uuid(reading) for reading in readings} - {""}
    rows = Gpu.objects.filter(tenant_id=tenant_id, uuid__in=uuids)
    return {gpu.uuid: gpu for gpu in rows}
