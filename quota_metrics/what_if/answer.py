"""A what-if question, and its answer: the outcome for each client, and the part of the recording that it covers; which
clients the changes of a plan hit, and which they would have throttled."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from exporters.clickhouse.client import ClickHouse
from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, QuotaAlteration, Rules
from quota_metrics.config.quota_plan import QuotaDifference, alterations_of
from quota_metrics.config.resolution import CLIENT_KEYS, Resolver
from quota_metrics.simulation.outcomes import ClientOutcome, Simulation, worst_first
from quota_metrics.what_if.recording import Recording, SeenClient, SeenClients, divided

Names = tuple[str, str]  # user, client-id

COMPLETE_AFTER_MS = 4_000  # by then the rows of a minute are stored


@dataclass(frozen=True, slots=True)
class ReplayBudget:
    """The most that an answer examines, in the order of the clients' bytes: the answer says what it left out. It does
    not depend on the machine, so that the same question has the same answer everywhere."""

    clients: int = 4_000  # at a broker, that may be throttled
    rows: int = 1_000_000
    requests: int = 1_000_000


BUDGET_OF_PLAN = ReplayBudget(100_000, 20_000_000, 20_000_000)  # of many quotas: the answer may take minutes
UNLIMITED_BUDGET = ReplayBudget(2**53, 2**53, 2**53)


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """Changes to make together, and the recorded time (from_ms, to_ms] to look at. `cluster` "": the only one."""

    alterations: Sequence[QuotaAlteration]
    from_ms: int
    to_ms: int
    cluster: str = ""

    @property
    def keys(self) -> list[str]:
        return sorted({key for alteration in self.alterations for key in alteration.values})


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the clients at a broker that the change may affect: how many were examined, and their share of bytes."""

    clients: int
    of_clients: int
    bytes_share: float


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """`outcomes`: the worst first. `quiet`: clients that are not among them, which no limit can throttle.
    `window_s`: the shortest quota window. `callback_classes`: of brokers that may ignore the configured quotas."""

    question: WhatIfQuestion
    outcomes: list[ClientOutcome]
    quiet: int
    covers: Coverage
    unaffected: int
    window_s: float
    callback_classes: tuple[str, ...] = ()


class UnrecordedClusterError(ValueError):
    """No usage was recorded of the cluster that the question names. `ambiguous`: it names none of several."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


def whole_minutes(now_ms: int, seconds: int) -> tuple[int, int]:
    """The last minutes whose rows are all stored: (from_ms, to_ms)."""
    to_ms = (now_ms - COMPLETE_AFTER_MS) // 60_000 * 60_000
    return to_ms - seconds * 1000, to_ms


def recorded_clients(question: WhatIfQuestion, clickhouse: ClickHouse, now_ms: int) -> list[tuple[str, str]]:
    """(user, client-id) of all clients with usage of any quota. Raises UnrecordedClusterError, ConnectionError."""
    recording = Recording(clickhouse, question.cluster, CLIENT_KEYS, question.from_ms, question.to_ms, now_ms)
    return replace(recording, cluster=_choose_cluster(recording)).clients()


def answer(
    question: WhatIfQuestion, clickhouse: ClickHouse, now_ms: int, budget: ReplayBudget = ReplayBudget()
) -> WhatIfAnswer:
    """Raises UnrecordedClusterError, ConnectionError."""
    when = (question.from_ms, question.to_ms, now_ms)
    recording = Recording(clickhouse, question.cluster, question.keys, *when)
    recording = replace(recording, cluster=_choose_cluster(recording))
    history = recording.history()
    brokers = recording.brokers()
    seen = recording.seen(question.alterations, history, brokers.windows, budget.clients)
    simulation = Simulation(
        history,
        question.alterations,
        [client.seen for client in seen.clients],
        from_ms=question.from_ms,
        to_ms=question.to_ms,
        windows=brokers.windows,
    )
    _replay(simulation, recording, seen, budget)
    outcomes = worst_first(simulation.outcomes())
    beyond = seen.may_be_affected - len(seen.clients)
    quiet = min(seen.quiet - sum(client.quiet for client in seen.clients), beyond)
    skipped = set(simulation.skipped)
    examined_bytes = sum(client.bytes for client in seen.clients if client.client not in skipped)
    is_complete = (not skipped and beyond == quiet) or not seen.bytes
    share = 1.0 if is_complete else examined_bytes / seen.bytes
    return WhatIfAnswer(
        replace(question, cluster=recording.cluster),
        outcomes,
        quiet,
        Coverage(len(outcomes) + quiet, seen.may_be_affected, share),
        seen.everyone - seen.may_be_affected + sum(not outcome.affected for outcome in outcomes),
        min(at.window.length_ms for at in brokers.windows.distinct) / 1000,
        brokers.callback_classes,
    )


def _replay(simulation: Simulation, recording: Recording, seen: SeenClients, budget: ReplayBudget) -> None:
    """Those with most bytes first, as far as the budget goes."""
    seen_by_client = {client.client: client for client in seen.clients}
    rows, requests = budget.rows, budget.requests
    replayed: list[list[SeenClient]] = []
    for group in sorted(simulation.groups, key=lambda group: -sum(seen_by_client[client].bytes for client in group)):
        members = [seen_by_client[client] for client in group]
        count = sum(member.rows for member in members)
        if count > rows:
            simulation.skip(group)
        else:
            rows -= count
            replayed.append(members)
    for part in divided(replayed, lambda members: sum(member.rows for member in members)):
        usage = dict(recording.usage([member for members in part for member in members], throttled_only=False))
        for members in part:
            requests -= simulation.replay([member.client for member in members], usage, requests)
        simulation.throttled(usage)
    done = {member.client for members in replayed for member in members}
    throttled: list[SeenClient] = []
    for client in seen.clients:
        if not client.throttled or client.client in done:
            continue
        if client.throttled > rows:
            simulation.skip([client.client])
        else:
            rows -= client.throttled
            throttled.append(client)
    simulation.throttled(dict(recording.usage(throttled, throttled_only=True)))


def _choose_cluster(recording: Recording) -> str:
    """The recording's cluster, or the only one with usage."""
    wanted = recording.cluster
    if wanted and recording.has_usage():
        return wanted
    recorded = recording.clusters()
    if not recorded:
        raise UnrecordedClusterError("no usage of these quotas was recorded in this time")
    if wanted:
        raise UnrecordedClusterError(
            f"no usage of cluster {wanted!r} was recorded in this time, only of {', '.join(recorded)}"
        )
    if len(recorded) > 1:
        raise UnrecordedClusterError(f"choose a cluster: {', '.join(recorded)}", ambiguous=True)
    return recorded[0]


def hits(
    rules: Rules, changes: Sequence[QuotaDifference], clients: Iterable[Names]
) -> Mapping[tuple[Entity, str], list[Names]]:
    """For each changed value the recorded clients whose quota it is, before or after all the changes."""
    before, after = Resolver(rules), Resolver(altered(rules, *alterations_of(changes)))
    changed = {(change.holder, change.key) for change in changes}
    of_change: dict[tuple[Entity, str], list[Names]] = defaultdict(list)
    for user, client_id in clients:
        quotas = [resolver.resolve(user, client_id) for resolver in (before, after)]
        entities = {(resolution.entity, key) for resolved in quotas for key, resolution in resolved.items()}
        for change in entities & changed:
            of_change[change].append((user, client_id))
    return of_change


def harmed(answer: WhatIfAnswer) -> list[ClientOutcome]:
    """Clients that would have been throttled for longer than they were: one for each quota key, user and client-id, at
    its worst broker, the longest throttled first."""

    def longer_ms(outcome: ClientOutcome) -> float:
        return outcome.after.throttled_ms - outcome.before.throttled_ms

    worst: dict[tuple[str, str, str], ClientOutcome] = {}
    for outcome in answer.outcomes:
        client = outcome.client
        if outcome.affected and longer_ms(outcome) > 0:
            key = (client.quota_key, client.user, client.client_id)
            if key not in worst or longer_ms(outcome) > longer_ms(worst[key]):
                worst[key] = outcome
    return sorted(worst.values(), key=longer_ms, reverse=True)
