"""telemetry/subscriptions/payer_budgets.py: who pays, what is refused, and when a payer is served again."""

import dataclasses

import pytest

from exporters.model import Connection
from telemetry.subscriptions.payer_budgets import (
    MAX_PAYERS,
    Account,
    PayerLimits,
    Payers,
    PayerUse,
    Resource,
    merged_uses,
)

ALICE = Connection("c", "SASL_SSL", "alice", "10.0.0.1", 40_000, "java", "4.3.1", 1)
LIMITS = PayerLimits(requests=10, instances=1, nbytes=1_000, connection_share=0.5)
PAYER_BURST, CONNECTION_BURST = 100, 50  # requests of 10 s
START_MS = 1_000


def accepted(account: Account, count: int, now_ms: int = START_MS, nbytes: int = 0, is_new: bool = False) -> int:
    """How many of `count` requests at one moment are accepted."""
    return sum(account.charge(now_ms, nbytes, is_new) == 0 for _ in range(count))


def test_payer_is_limited_over_all_its_connections_and_addresses() -> None:
    payers = Payers(LIMITS)
    elsewhere = dataclasses.replace(ALICE, source_address="10.9.9.9")
    accounts = [payers.account(ALICE, "1"), payers.account(ALICE, "2"), payers.account(elsewhere, "3")]
    assert [accepted(account, 1_000) for account in accounts] == [CONNECTION_BURST, CONNECTION_BURST, 0]
    bob = payers.account(dataclasses.replace(ALICE, principal="bob"), "4")
    assert accepted(bob, 1_000) == CONNECTION_BURST


def test_connection_that_is_accounted_again_keeps_its_budget() -> None:
    payers = Payers(LIMITS)
    assert accepted(payers.account(ALICE, "1"), 1_000) == CONNECTION_BURST
    assert accepted(payers.account(ALICE, "1"), 1_000) == 0


@pytest.mark.parametrize(
    ("resource", "nbytes", "is_new", "within"),
    [
        (Resource.REQUESTS, 0, False, 50),  # 5 a second for 10 s
        (Resource.INSTANCES, 0, True, 50),  # 0.5 a second for 100 s
        (Resource.BYTES, 1_000, False, 10),  # 500 a second for 20 s
    ],
)
def test_refusal_names_the_resource_and_the_time_to_wait(
    resource: Resource, nbytes: int, is_new: bool, within: int
) -> None:
    payers = Payers(dataclasses.replace(LIMITS, requests=10 if resource is Resource.REQUESTS else 1_000))
    account = payers.account(ALICE, "1")
    assert accepted(account, 1_000, nbytes=nbytes, is_new=is_new) == within
    throttle_ms = account.charge(START_MS, nbytes, is_new)
    assert 1_000 <= throttle_ms <= 60_000
    assert account.charge(START_MS + throttle_ms, nbytes, is_new) == 0
    assert payers.refused[resource] == payers.refused.total() == 1_000 - within + 1


def test_known_instances_are_served_while_new_ones_are_refused() -> None:
    account = Payers(dataclasses.replace(LIMITS, requests=1_000)).account(ALICE, "1")
    assert accepted(account, 100, is_new=True) == 50
    assert accepted(account, 100) == 100


def test_default_budgets_serve_ten_thousand_instances_of_one_principal() -> None:
    """All ask for an id and push at once, then push every 10 s, as after a restart of the gateway."""
    payers = Payers()
    accounts = [payers.account(ALICE, str(n)) for n in range(10_000)]
    for account in accounts:
        assert account.charge(0, 0, True) == 0
    for turn in range(1, 7):
        for n, account in enumerate(accounts):
            assert account.charge(10_000 * turn + n, 20_000, False) == 0
    assert payers.refused.total() == 0
    assert payers.worst(10) == []


def test_worst_payers_are_listed_first() -> None:
    payers = Payers(LIMITS)
    for n, extra in enumerate((3, 30, 0)):
        connection = dataclasses.replace(ALICE, principal=f"user-{n}" + "x" * 300)
        accepted(payers.account(connection, str(n)), CONNECTION_BURST + extra, now_ms=0)
    worst = payers.worst(1)
    assert worst == [PayerUse(f"user-1{'x' * 249}", {"requests": 30}, 0)]
    elsewhere = [PayerUse("other", {"bytes": 50}, 7), worst[0]._replace(last_refused_ms=9)]
    assert merged_uses([payers.worst(10), elsewhere])[:2] == [
        PayerUse(worst[0].payer, {"requests": 60}, 9),
        PayerUse("other", {"bytes": 50}, 7),
    ]


def test_number_of_payers_is_bounded() -> None:
    payers = Payers(LIMITS)
    first = payers.account(ALICE, "first")
    accepted(first, 1_000)
    for n in range(MAX_PAYERS):
        payers.account(dataclasses.replace(ALICE, principal=str(n)), str(n))
    assert payers.worst(10) == []
    assert accepted(first, 10) == 0  # the open connection keeps what it used
