"""Who pays: principals, or source addresses of clients without one, by what they cost and how far they are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exporters.clickhouse.client import Row
from exporters.identity import CLAIMED, UNREAD_PRINCIPAL
from exporters.model import ANONYMOUS

NAMES = {"anonymous": ANONYMOUS, "unread": UNREAD_PRINCIPAL, "claimed": CLAIMED}
# As exporters.identity.payer_of has it, but for the network of an IPv6 address: what each sent in 15 minutes.
COSTS = """
SELECT if(principal IN ('', {anonymous:String}) OR startsWith(principal, {unread:String})
          OR startsWith(principal, {claimed:String}), source_address, principal) AS payer,
       toFloat64(count()) AS pushes, toFloat64(sum(p.bytes)) AS bytes, toFloat64(sum(p.points)) AS points,
       toFloat64(uniq(client_instance_id)) AS instances
FROM pushes AS p
WHERE received_at > now64(3) - INTERVAL 15 MINUTE
GROUP BY payer
ORDER BY points DESC, payer
LIMIT {limit:UInt32}
"""


def payer_rows(
    over: Iterable[Mapping[str, Any]], left_out: Iterable[Mapping[str, Any]], costs: Iterable[Row]
) -> list[Row]:
    """Those over their budgets first, then those that cost most.

    `over`: {payer, refused, last_refused_ms}; `left_out`: {payer, exchanges, last_ms}; `costs`: rows of COSTS.
    """
    rows: dict[str, Row] = {}

    def of(payer: str) -> Row:
        nothing: Row = {"refused": {}, "last_refused_ms": None, "not_metered": 0, "pushes": 0, "bytes": 0, "points": 0}
        return rows.setdefault(payer, {"payer": payer, **nothing, "instances": 0})

    for use in over:
        of(use["payer"]).update(refused=dict(use["refused"]), last_refused_ms=use["last_refused_ms"])
    for payer_left_out in left_out:
        of(payer_left_out["payer"]).update(not_metered=payer_left_out["exchanges"])
    for cost in costs:
        of(cost["payer"]).update({name: int(cost[name]) for name in ("pushes", "bytes", "points", "instances")})
    return sorted(
        rows.values(),
        key=lambda row: (-sum(row["refused"].values()), -row["not_metered"], -row["points"], row["payer"]),
    )
