"""Which writer of the spool a push belongs to, so that a flood waits behind itself: the reader serves writers in turn.

Those who pay for most have writers of their own, and there their quiet connections are apart from the busy ones: many
clients may be one payer, behind one address, and one of them must not make the others wait. Sans-I/O.
"""

from typing import Final

from exporters.identity import payer_of
from exporters.model import RecordKind
from exporters.spool.records import CONNECTION_AT, decode_connection

_PUSH: Final = RecordKind.PUSH  # enum member access is slow in Python 3.11
PUSH_COST: Final = 500  # rows that ingest allows for the smallest push
_HEAVY_PER_S: Final = 100_000  # a fleet of 700 Java clients that push every 10 s
_BUSY_PER_S: Final = 50_000  # of one connection of a heavy payer
_LIGHT_SHARE: Final = 0.5  # of _HEAVY_PER_S: below it for _LIGHT_AFTER_S a payer is ordinary again
_LIGHT_AFTER_S: Final = 10.0
_BUSY_PERIODS: Final = 10  # after so many a connection is quiet again
_MAX_LANES: Final = 8
_MAX_CONNECTIONS: Final = 65_536  # whose payer is remembered
_IDLE_S: Final = 60.0  # a lane without payers closes its segments, so that the reader can free them
ORDINARY: Final = 0  # the place of those who send little


class Lane:
    """Two writers of heavy payers, mostly of one payer: at `place` for busy connections, behind it for quiet ones."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.payers = 0
        self.idle_since_s = 0.0
        self.is_full = False  # as of the last flush


class _Payer:
    """What a payer sent in this period. `lane` is None for one of ordinary size."""

    def __init__(self) -> None:
        self.lane: Lane | None = None
        self.spent = 0
        self.light_since_s = -1.0


class Sender:
    """A connection, and what it sent in the period of this number. `busy_to`: the last period in which it is busy."""

    def __init__(self, payer: _Payer) -> None:
        self.payer = payer
        self.spent = self.period = 0
        self.busy_to = -1


class Lanes:
    """Who pays for a push (`exporters.identity.payer_of`) chooses its writer by what it sent in the last seconds.

    A push costs the rows that it may become: its bytes, since ingest bounds points per byte, and a constant.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._by_connection: dict[bytes, Sender] = {}
        self._by_payer: dict[str, _Payer] = {}
        self._period = 0

    def sender_of(self, kind: RecordKind, body: bytes) -> Sender:
        at = CONNECTION_AT[kind is _PUSH]
        start = at + 4
        end = start + (body[at] << 8 | body[at + 1])
        connection = body[start:end]
        sender = self._by_connection.get(connection)
        if sender is not None:
            return sender
        try:
            decoded = decode_connection(connection)
            name = payer_of(decoded.principal, decoded.source_address)
        except ValueError:  # an address that a sender of OTLP states
            name = ""
        payer = self._by_payer.get(name)
        if payer is None:
            payer = self._by_payer[name] = _Payer()
        if len(self._by_connection) >= _MAX_CONNECTIONS:
            self._by_connection.clear()
        sender = self._by_connection[connection] = Sender(payer)
        return sender

    def place_of(self, sender: Sender) -> int:
        """ORDINARY, or one of its payer's lane."""
        lane = sender.payer.lane
        if lane is None:
            return ORDINARY
        return lane.place if sender.busy_to >= self._period else lane.place + 1

    def charge(self, sender: Sender, nbytes: int) -> None:
        """Counts a queued record. A payer that has sent much has a lane of its own from now on."""
        cost = nbytes + PUSH_COST
        payer = sender.payer
        payer.spent += cost
        if payer.lane is None and payer.spent > _HEAVY_PER_S:
            # It gets an empty lane, a new one, or that with the fewest payers.
            lane = min(self.lanes, key=lambda lane: lane.payers, default=None)
            if lane is None or (lane.payers and len(self.lanes) < _MAX_LANES):
                lane = Lane(2 * len(self.lanes) + 1)
                self.lanes.append(lane)
            lane.payers += 1
            payer.lane, payer.light_since_s = lane, -1.0
        if sender.period != self._period:
            sender.period, sender.spent = self._period, 0
        sender.spent += cost
        if sender.spent > _BUSY_PER_S:
            sender.busy_to = self._period + _BUSY_PERIODS

    def settle(self, now_s: float, elapsed_s: float) -> list[Lane]:
        """Ends a period of about a second: payers that send little again join the others, those that sent nothing are
        forgotten. Returns the lanes that nobody has used for long."""
        self._period += max(1, int(elapsed_s))
        forgotten = False
        for name, payer in list(self._by_payer.items()):
            spent, payer.spent = payer.spent, 0
            lane = payer.lane
            if lane is None:
                if spent == 0 and len(self._by_payer) > _MAX_CONNECTIONS:
                    del self._by_payer[name]
                    forgotten = True
            elif spent > _LIGHT_SHARE * _HEAVY_PER_S * elapsed_s:
                payer.light_since_s = -1.0
            elif payer.light_since_s < 0:
                payer.light_since_s = now_s
            elif now_s - payer.light_since_s >= _LIGHT_AFTER_S:
                lane.payers -= 1
                lane.idle_since_s = now_s
                payer.lane = None
        if forgotten:
            self._by_connection.clear()
        return [lane for lane in self.lanes if not lane.payers and now_s - lane.idle_since_s >= _IDLE_S]
