"""The verdict of one incident (R1-R9): what its movements' facts say. It groups nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from sla.domain.evidence import Finished, Movement
from sla.domain.terms import Terms

Verdict = Literal["zero_loss", "rollback", "pending"]
REASONS: Final = (
    "rolled_back",
    "gap",
    "recomputed",
    "checkpoint_restore",
    "samples_skipped",
    "no_recovery",
    "too_slow",
    "missing_evidence",
    "inconsistent",
    "conflict",
    "unreported",
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one movement, or of a chain of them; None where nothing reports it.

    `negative`: some report holds a negative number (R8).
    """

    committed: int | None
    resumed: int | None
    recomputed: int | None
    skipped: int | None
    state_source: str | None
    negative: bool

    @property
    def lost_steps(self) -> int:
        """R3: 0 where C or R is unknown."""
        if self.committed is None or self.resumed is None:
            return 0
        return max(0, self.committed + 1 - self.resumed)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`customer_stop`: excluded at once (R5). `deadline_us`: when a pending one is a rollback."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    lost_steps: int = 0
    customer_stop: bool = False
    deadline_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One failed epoch of a run, as far as a verdict needs it.

    `base_committed`: the largest step that the epoch's failures and progress report.
    `first_failure_us`: None where a movement stands for a failure that nobody reported (R10).
    """

    epoch: int
    base_committed: int | None
    movements: tuple[Movement, ...]
    first_failure_us: int | None

    @property
    def committed(self) -> int | None:
        """C (R1): whoever saw the most steps is believed."""
        return largest([self.base_committed, *(move.committed_step for move in self.movements)])


def largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def in_order(reasons: set[str]) -> tuple[str, ...]:
    """Reasons in the order in which R1 lists them."""
    return tuple(reason for reason in REASONS if reason in reasons)


def reasons_of(facts: Facts, terms: Terms) -> set[str]:
    """R1, R4 and R8 on one set of facts; empty means zero loss."""
    reasons = set()
    committed, resumed = facts.committed, facts.resumed
    recomputed = facts.recomputed or 0
    if committed is not None and resumed is not None:
        if resumed <= committed:
            reasons.add("rolled_back")
        if resumed > committed + 1:
            reasons.add("gap")
            if recomputed > 0:
                reasons.add("inconsistent")
    if recomputed > 0:
        reasons.add("recomputed")
    if facts.state_source == "checkpoint" and not _exact_checkpoint_allowed(facts, terms):
        reasons.add("checkpoint_restore")
    if facts.skipped is not None and facts.skipped > 0:
        reasons.add("samples_skipped")
    if facts.negative:
        reasons.add("inconsistent")
    needed = (committed, resumed, facts.recomputed, facts.skipped, facts.state_source)
    if any(fact is None for fact in needed):
        reasons.add("missing_evidence")
    return reasons


def _exact_checkpoint_allowed(facts: Facts, terms: Terms) -> bool:
    return (  # R4
        terms.allow_exact_checkpoint
        and facts.committed is not None
        and facts.resumed == facts.committed + 1
        and facts.recomputed == 0
    )


def facts_of(episode: Episode) -> Facts:
    """The worst of each fact over all reports of the episode's movement (R9)."""
    moves = episode.movements
    sources = {move.state_source for move in moves if move.state_source is not None}
    return Facts(
        committed=episode.committed,
        resumed=min((m.resumed_step for m in moves if m.resumed_step is not None), default=None),
        recomputed=largest(move.recomputed_steps for move in moves),
        skipped=largest(move.samples_skipped for move in moves),
        state_source="checkpoint" if "checkpoint" in sources else min(sources, default=None),
        negative=any(_holds_negative(move) for move in moves),
    )


def _holds_negative(move: Movement) -> bool:
    numbers = (
        move.resumed_step,
        move.recomputed_steps,
        move.samples_skipped,
        move.committed_step,
        move.total_seconds,
    )
    return any(number is not None and number < 0 for number in numbers)  # R8


def reasons_of_episode(episode: Episode, terms: Terms) -> set[str]:
    """One epoch's movement on its own, R6 aside: its merged facts, and R9's conflict."""
    reasons = reasons_of(facts_of(episode), terms)
    alone = {
        not reasons_of(
            facts_of(
                Episode(
                    epoch=episode.epoch,
                    base_committed=episode.base_committed,
                    movements=(move,),
                    first_failure_us=None,
                )
            ),
            terms,
        )
        for move in episode.movements
    }
    return reasons | {"conflict"} if len(alone) > 1 else reasons


def judge_movements(episodes: Sequence[Episode], terms: Terms, *, planned: bool) -> Judgement:
    """Judge a chain whose last epoch has a movement: as a whole and epoch by epoch (R11)."""
    moved = [episode for episode in episodes if episode.movements]
    each = [facts_of(episode) for episode in moved]
    sources = {facts.state_source for facts in each}
    whole = Facts(
        committed=episodes[0].committed,
        resumed=each[-1].resumed,
        recomputed=sum(facts.recomputed or 0 for facts in each),
        skipped=sum(facts.skipped or 0 for facts in each),
        state_source="checkpoint" if "checkpoint" in sources else each[-1].state_source,
        negative=False,
    )
    reasons = reasons_of(whole, terms)
    for episode in moved:
        reasons |= reasons_of_episode(episode, terms)
    if not planned:
        reasons |= _too_slow(moved, terms)
    return Judgement(
        verdict="rollback" if reasons else "zero_loss",
        reasons=in_order(reasons),
        lost_steps=whole.lost_steps,
    )


def _too_slow(moved: Sequence[Episode], terms: Terms) -> set[str]:
    if terms.max_recovery_seconds is None:
        return set()
    reasons = set()
    recovery_seconds = Fraction(0)
    for episode in moved:
        totals = [m.total_seconds for m in episode.movements if m.total_seconds is not None]
        if totals:
            recovery_seconds += max(totals)
        else:
            reasons.add("missing_evidence")
    if recovery_seconds > terms.max_recovery_seconds:  # R6
        reasons.add("too_slow")
    return reasons


def judge_silence(
    episode: Episode, finishes: Iterable[Finished], terms: Terms, now_us: int
) -> Judgement:
    """R5: the last failed epoch has no movement that is known at `now_us`."""
    if episode.first_failure_us is None:
        raise ValueError("an epoch without a movement is known by its failures")
    failed_us = episode.first_failure_us
    deadline_us = failed_us + terms.recovery_deadline_us
    later = [finish for finish in finishes if finish.time_us >= failed_us]
    stopped = any(
        finish.status == "cancelled" and finish.by == "customer" and finish.time_us < deadline_us
        for finish in later
    )
    over = any(finish.status in {"completed", "failed"} for finish in later)
    if stopped or over or now_us >= deadline_us:
        return Judgement(verdict="rollback", reasons=("no_recovery",), customer_stop=stopped)
    return Judgement(verdict="pending", deadline_us=deadline_us)
