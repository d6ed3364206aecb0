"""What is one incident (R7, R10-R14, R41, R43), each with its verdict. It excludes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sla.domain.evidence import Finished, Record, Started
from sla.domain.run import RunEvidence
from sla.domain.terms import Terms
from sla.domain.verdict import (
    Facts,
    Judgement,
    in_order,
    judge_movements,
    judge_silence,
    largest,
    reasons_of,
)

Kind = Literal["failure", "planned", "unreported", "park"]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One counted failure of one run.

    `first_event` and `first_source` identify it; `epochs` are its failed epochs, `evidence` the
    (source, id) of every event that it rests on, in order.
    """

    kind: Kind
    run: str
    first_event: str
    first_source: str
    occurred_us: int
    epochs: tuple[int, ...]
    failure_ids: frozenset[str]
    nodes: frozenset[str]
    judgement: Judgement
    evidence: tuple[tuple[str, str], ...]

    @property
    def order(self) -> tuple[int, str, str, str, str]:
        return (self.occurred_us, self.run, self.first_event, self.first_source, self.kind)


# Chains that time alone does not change, by their epochs, with the versions they were judged on.
Cache = dict[tuple[int, ...], tuple[tuple[int, ...], Incident]]


def incidents_of(
    run: RunEvidence,
    confirmed: frozenset[str],
    terms: Terms,
    now_us: int,
    cache: Cache | None = None,
) -> list[Incident]:
    """Every incident of the run as known at `now_us`, in order.

    `confirmed`: ids of the migrations that a confirmed prediction names (R7). `cache`: kept by who
    judges the same run under the same terms again and again.
    """
    incidents = []
    for epochs in _chains_of(run):
        incidents.append(_known_chain(run, epochs, terms, now_us, {} if cache is None else cache))
    for epoch in run.epochs():
        if not run.is_failed(epoch):
            incidents.extend(_planned(run, epoch, confirmed, terms))
    incidents.extend(_parks(run, terms))
    incidents.extend(_unreported(run, incidents))
    return sorted(incidents, key=lambda incident: incident.order)


def _chains_of(run: RunEvidence) -> list[list[int]]:
    """The failed epochs of the run, cut into incidents (R10-R12)."""
    chains: list[list[int]] = []
    for epoch in run.epochs():
        if not run.is_failed(epoch):
            continue
        if chains and _joins(run, chains[-1], epoch):
            chains[-1].append(epoch)
        else:
            chains.append([epoch])
    return chains


def _joins(run: RunEvidence, chain: Sequence[int], epoch: int) -> bool:
    """R11: nothing was committed between the chain and the failure in `epoch`."""
    committed = run.committed_in(epoch)
    resumed = [
        move.resumed_step
        for before in chain
        for move in run.movements.get(before, ())
        if move.to_epoch == epoch and move.resumed_step is not None
    ]
    if resumed and (committed is None or committed < min(resumed)):
        return True
    if any(move.resumed_step is not None for move in run.movements.get(chain[-1], ())):
        return False
    so_far = largest(run.committed_in(before) for before in chain)
    return committed is None or (so_far is not None and committed <= so_far)


def _known_chain(
    run: RunEvidence, epochs: Sequence[int], terms: Terms, now_us: int, cache: Cache
) -> Incident:
    key = tuple(epochs)
    versions = tuple(run.versions.get(epoch, 0) for epoch in key)
    known = cache.get(key)
    if known is not None and known[0] == versions:
        return known[1]
    incident = _failed_chain(run, epochs, terms, now_us)
    if run.movements.get(key[-1]):  # otherwise R5 decides, and asks what time it is
        cache[key] = (versions, incident)
    return incident


def _failed_chain(run: RunEvidence, epochs: Sequence[int], terms: Terms, now_us: int) -> Incident:
    episodes = [run.episode(epoch) for epoch in epochs]
    if episodes[-1].movements:
        judgement = judge_movements(episodes, terms, planned=False)
    else:
        judgement = judge_silence(episodes[-1], run.finishes, terms, now_us)
    failures = [failure for epoch in epochs for failure in run.failures.get(epoch, ())]
    stand_ins = [
        move
        for episode in episodes
        if episode.first_failure_us is None
        for move in episode.movements
        if not move.planned
    ]
    return _incident(
        kind="failure",
        starters=[*failures, *stand_ins],
        epochs=tuple(epochs),
        judgement=judgement,
        others=[move for episode in episodes for move in episode.movements],
        failure_ids=frozenset(failure.failure_id for failure in failures),
        nodes=frozenset(node for failure in failures for node in failure.nodes),
    )


def _planned(
    run: RunEvidence, epoch: int, confirmed: frozenset[str], terms: Terms
) -> list[Incident]:
    """R7: a planned migration is an incident where it lost something, by itself."""
    episode = run.episode(epoch)
    judgement = judge_movements([episode], terms, planned=True)
    if judgement.verdict == "zero_loss":
        is_confirmed = any(move.id in confirmed for move in episode.movements)
        if not (terms.count_confirmed_predictions and is_confirmed):
            return []
    return [
        _incident(kind="planned", starters=episode.movements, epochs=(epoch,), judgement=judgement)
    ]


def _parks(run: RunEvidence, terms: Terms) -> list[Incident]:
    """R43: a run that was parked resumes at the very next step, or it is an incident."""
    starts = sorted((start for start in run.starts if start.opens), key=lambda start: start.key)
    parked: dict[Started, list[Finished]] = {}
    for finish in run.finishes:
        if finish.status == "parked":
            resumed = next((start for start in starts if start.key > finish.key), None)
            if resumed is not None:
                parked.setdefault(resumed, []).append(finish)
    incidents = []
    for start, finishes in parked.items():
        committed = largest(finish.committed_step for finish in finishes)
        numbers = [start.resumed_step, *(finish.committed_step for finish in finishes)]
        facts = Facts(
            committed=committed,
            resumed=start.resumed_step,
            recomputed=0,
            skipped=0,
            state_source="source_memory",
            negative=any(number is not None and number < 0 for number in numbers),
        )
        reasons = in_order(reasons_of(facts, terms))
        if reasons:
            judgement = Judgement(verdict="rollback", reasons=reasons, lost_steps=facts.lost_steps)
            incidents.append(
                _incident(
                    kind="park", starters=[start], epochs=(), judgement=judgement, others=finishes
                )
            )
    return incidents


def _unreported(run: RunEvidence, known: Sequence[Incident]) -> list[Incident]:
    """R41: progress that went back although no incident says that it may."""
    failed = {
        epoch
        for incident in known
        if incident.judgement.verdict != "zero_loss"
        for epoch in incident.epochs
    }
    incidents = []
    for drops in run.drops.values():
        for before, after in drops:
            end = max(after.epoch, before.epoch + 1)
            if any(before.epoch <= epoch < end for epoch in failed):
                continue
            judgement = Judgement(
                verdict="rollback",
                reasons=("unreported",),
                lost_steps=before.committed_step - after.committed_step,
            )
            incidents.append(
                _incident(
                    kind="unreported",
                    starters=[after],
                    epochs=(),
                    judgement=judgement,
                    others=[before],
                )
            )
    return incidents


def _incident(
    *,
    kind: Kind,
    starters: Sequence[Record],
    epochs: tuple[int, ...],
    judgement: Judgement,
    others: Sequence[Record] = (),
    failure_ids: frozenset[str] = frozenset(),
    nodes: frozenset[str] = frozenset(),
) -> Incident:
    first = min(starters, key=lambda record: record.key)  # R14
    rests_on = sorted({record.key: record for record in (*starters, *others)}.items())
    return Incident(
        kind=kind,
        run=first.run,
        first_event=first.id,
        first_source=first.source,
        occurred_us=first.time_us,
        epochs=epochs,
        failure_ids=failure_ids,
        nodes=nodes,
        judgement=judgement,
        evidence=tuple((record.source, record.id) for _, record in rests_on),
    )
