"""The SELECT that says how the instances of a client changed: a row for each client and window in which some are new.

Its arrays have an element for each onset 1 to TOLD_WINDOWS windows before the window. New is an instance that was seen
first in the window before the onset or later, of a client that had others before. `changes` names in words those with
a version of the software, else in a network, that no instance had before; else all of them, as more instances or as
restarted ones. `sent_shares` and `received_shares` are what these report of the bytes of all instances since the onset,
NULL where none reports bytes (client_signals). `kept` is the share of the instances of before that are still there,
`growth` by what share of these there are more. An instance is gone after its terminating push, or when three of its
push intervals have passed without a push: many clients end without a terminating push.

Query parameters: those of signals_query.
"""

from __future__ import annotations

from typing import Final

from quota_metrics.levels import client_signals
from quota_metrics.levels.cause import TOLD_WINDOWS

_SILENT_INTERVALS = 3
_LEAST_SILENT_MS, _MOST_SILENT_MS = 15_000, 900_000  # the latter is that of the longest push interval
_CLIENT = "cluster, user, client_id"
_WINDOW = "{window_ms:Int64}"
_EARLIEST_MS = f"({{from_ms:Int64}} - {TOLD_WINDOWS + 1} * {_WINDOW})"  # of new instances
_OF_CLUSTER = "({cluster:String} = '' OR cluster = {cluster:String})"
_OUTGOING, _INCOMING = map(client_signals.metrics_of, ("outgoing_bytes", "incoming_bytes"))

# `10.1.2.0/24`, and of IPv6 the /64; '' for what is no address.
_NETWORK = """multiIf(
    isIPv4String(address), concat(toString(IPv4CIDRToRange(toIPv4OrDefault(address), 24).1), '/24'),
    isIPv6String(address), concat(toString(IPv6CIDRToRange(toIPv6OrDefault(address), 64).1), '/64'), '')"""

# After its last push. Its interval is that between its pushes; nobody knows it before the second.
_SILENT_MS = f"""if(sum(i.pushes) < 2, {_MOST_SILENT_MS},
    least({_MOST_SILENT_MS}, greatest({_LEAST_SILENT_MS},
          intDiv({_SILENT_INTERVALS} * (last_ms - first_ms), toInt64(sum(i.pushes)) - 1))))"""

# Each instance, and what each reported in each window: of clients that have new instances.
_INSTANCES = f"""
SELECT cluster, toValidUTF8(i.principal) AS user, toValidUTF8(i.client_id) AS client_id,
       toString(client_instance_id) AS instance, toUnixTimestamp64Milli(min(i.first_seen)) AS first_ms,
       toUnixTimestamp64Milli(max(i.last_seen)) AS last_ms,
       if(max(i.terminated) = 1, last_ms, last_ms + {_SILENT_MS}) AS gone_ms,
       argMax((i.software_name, i.software_version), i.last_seen) AS software_seen,
       trimRight(toValidUTF8(concat(software_seen.1, ' ', software_seen.2))) AS software,
       toString(argMax(i.source_address, i.last_seen)) AS address, {_NETWORK} AS network,
       toInt64(0) AS report_no, toFloat64(0) AS sent, toFloat64(0) AS received
FROM client_instances AS i
WHERE {_OF_CLUSTER}
GROUP BY {_CLIENT}, instance
HAVING first_ms < {{to_ms:Int64}} AND gone_ms >= {_EARLIEST_MS}"""  # noqa: S608
_REPORTS = f"""
SELECT cluster, toValidUTF8(p.principal) AS user, toValidUTF8(p.client_id) AS client_id,
       toString(client_instance_id) AS instance, toInt64(0) AS first_ms, toInt64(0) AS gone_ms,
       '' AS software, '' AS network, intDiv(toUnixTimestamp64Milli(ts), {_WINDOW}) AS report_no,
       sumIf(value, metric IN {_OUTGOING!r}) AS sent, sumIf(value, metric IN {_INCOMING!r}) AS received
FROM points AS p FINAL
WHERE {{telemetry:UInt8}} AND metric IN {(*_OUTGOING, *_INCOMING)!r}
  AND ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {TOLD_WINDOWS} * {_WINDOW})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND isFinite(value) AND bitAnd(flags, 1) = 0 AND {_OF_CLUSTER}
  AND (cluster, principal, client_id) IN (
      SELECT cluster, principal, client_id FROM client_instances
      WHERE first_seen >= fromUnixTimestamp64Milli({_EARLIEST_MS}) AND {_OF_CLUSTER})
GROUP BY {_CLIENT}, instance, report_no"""  # noqa: S608 - made of our own words
_EITHER = f"{_CLIENT}, instance, first_ms, gone_ms, software, network, report_no, sent, received"
_CLIENTS = f"""
SELECT {_CLIENT}, groupArrayIf((first_ms, gone_ms, software, network, instance), first_ms > 0) AS seen,
       groupArrayIf((report_no, instance, sent, received), first_ms = 0) AS reports,
       arrayFilter(each -> each.1 >= {_EARLIEST_MS}, seen) AS newest
FROM view(SELECT {_EITHER} FROM view({_INSTANCES}) UNION ALL SELECT {_EITHER} FROM view({_REPORTS}))
GROUP BY {_CLIENT}
HAVING notEmpty(newest)"""  # noqa: S608 - made of our own words

# `window_no`: those that an onset reaches for which an instance is new.
_WINDOWS = f"""
SELECT {_CLIENT}, seen, reports, arrayJoin(arrayDistinct(arrayFlatten(arrayMap(
           each -> range(intDiv(each.1, {_WINDOW}), intDiv(each.1, {_WINDOW}) + {TOLD_WINDOWS + 2}), newest))))
           AS window_no
FROM view({_CLIENTS})"""  # noqa: S608 - made of our own words


def _there(at_ms: str) -> str:
    """Whether an instance is there at a time."""
    return f"each.1 < {at_ms} AND each.2 >= {at_ms}"


def _most(values: str) -> str:
    """The most frequent of an array's texts; '' of none."""
    return f"arraySort(each -> (-countEqual({values}, each), each), arrayDistinct({values}))[1]"


_ONSETS = f"""
SELECT {_CLIENT}, reports, window_no, ago, (window_no - ago - 1) * {_WINDOW} AS since_ms,
       (window_no + 1) * {_WINDOW} AS end_ms,
       arrayFilter(each -> {_there("end_ms")}, seen) AS now, arrayFilter(each -> {_there("since_ms")}, seen) AS before,
       arrayFilter(each -> each.1 >= since_ms, now) AS new,
       arrayFilter(each -> each != '' AND NOT has(before.3, each), new.3) AS versions, {_most("versions")} AS version,
       arrayFilter(each -> each != '' AND NOT has(before.4, each), new.4) AS networks, {_most("networks")} AS network
FROM view(SELECT *, arrayJoin(range(1, {TOLD_WINDOWS + 1})) AS ago FROM view({_WINDOWS}))
WHERE window_no * {_WINDOW} >= {{from_ms:Int64}} AND window_no * {_WINDOW} < {{to_ms:Int64}}"""  # noqa: S608

_NAMED = """multiIf(version != '', arrayFilter(each -> each.3 = version, new),
                   network != '', arrayFilter(each -> each.4 = network, new), new)"""
_AT = "concat(formatDateTime(fromUnixTimestamp64Milli(arrayMin(named.1)), '%H:%i', 'UTC'), ' UTC')"
_PART = "concat(toString(length(named)), ' of ', toString(length(now)), ' instances ')"
_CHANGE = f"""multiIf(
    empty(new) OR empty(before), '',
    version != '', concat({_PART}, 'run ', version, ' since ', {_AT}, ', ', {_most("before.3")}, ' before'),
    network != '', concat({_PART}, 'are in ', network, ' since ', {_AT}, ', none before'),
    length(now) > length(before),
        concat(toString(length(now)), ' instances since ', {_AT}, ', ', toString(length(before)), ' before'),
    concat({_PART}, 'restarted at ', {_AT}))"""


def _share(of: str) -> str:
    """What the named instances report of the bytes since the onset."""
    since = "each.1 >= window_no - ago AND each.1 <= window_no"
    total = f"arraySum(each -> if({since}, each.{of}, 0), reports)"
    named = f"arraySum(each -> if({since} AND has(names, each.2), each.{of}, 0), reports)"
    return f"if({total} > 0, {named} / {total}, NULL)"


CHANGES: Final = f"""
SELECT {_CLIENT}, window_start_ms, onsets.2 AS changes, onsets.3 AS kept, onsets.4 AS growth, onsets.5 AS sent_shares,
       onsets.6 AS received_shares
FROM view(
    SELECT {_CLIENT}, window_no * {_WINDOW} AS window_start_ms,
           arraySort(each -> each.1, groupArray((ago, change, stayed, more, sent, received))) AS onsets
    FROM view(
        SELECT *, {_NAMED} AS named, named.5 AS names, {_CHANGE} AS change,
               arrayCount(each -> each.1 < since_ms, now) / greatest(length(before), 1) AS stayed,
               if(length(now) > length(before), length(now) / greatest(length(before), 1) - 1, 0.) AS more,
               {_share("3")} AS sent, {_share("4")} AS received
        FROM view({_ONSETS})
    )
    GROUP BY {_CLIENT}, window_no
    HAVING arrayExists(each -> each.2 != '', onsets)
)"""  # noqa: S608 - made of our own words
