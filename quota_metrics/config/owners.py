"""Owners: which team a client or a topic belongs to, by patterns on names; prices of traffic; the cluster's capacity.

    owners:
      - team: payments
        user: "payments-*"
        topic: "payments.*"
        contact: payments@example.org
        page: https://wiki.example.org/payments
      - {team: search, client-id: "indexer-?"}
    prices: {in_per_gb: 0.01, out_per_gb: 0.02}
    capacity: {in_bytes_per_s: 200000000, out_bytes_per_s: 600000000}

The first owner whose patterns of user and client id all fit owns the client; the first whose pattern of topic fits owns
the topic. `*` is any text and `?` any character; case counts.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from exporters.model import UNOWNED
from exporters.printable import one_line
from quota_metrics.config.entities import PRINCIPAL_TYPE
from quota_metrics.config.quota_file import UniqueKeys

_MAX_FILE_BYTES: Final = 4 << 20
_MAX_OWNERS: Final = 10_000
_WILDCARD: Final = re.compile(r"[*?]")
_Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class OwnersError(ValueError):
    """The file is no list of owners; the message names the fault, in one line."""


class Owner(NamedTuple):
    team: str
    contact: str = ""
    page: str = ""


class Prices(BaseModel):
    """Money for each 10^9 bytes, in any currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    in_per_gb: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    out_per_gb: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Capacity(BaseModel):
    """What the cluster can take from and give to clients, of which a report shows each team's share; 0: not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    in_bytes_per_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    out_bytes_per_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class _Entry(BaseModel):
    """An owner in the file. `[` in a name is a character, not a set: brackets are quoted before they are matched."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    team: str = Field(min_length=1, max_length=200)
    user: Annotated[_Pattern | None, AfterValidator(lambda user: user and user.removeprefix(PRINCIPAL_TYPE))] = None
    client_id: _Pattern | None = Field(default=None, alias="client-id")
    topic: _Pattern | None = None
    contact: str = ""
    page: str = ""

    @model_validator(mode="after")
    def _has_a_pattern(self) -> Self:
        if not (self.owns_clients or self.topic):
            raise ValueError(f"{self.team} has no pattern of user, client-id or topic")
        if self.team == UNOWNED:
            raise ValueError(f"no team can be named {UNOWNED}")
        return self

    @property
    def owns_clients(self) -> bool:
        return self.user is not None or self.client_id is not None

    def fits(self, user: str, client_id: str) -> bool:
        of_user, of_client_id, _ = self._patterns
        return self.owns_clients and all(
            pattern is None or pattern.match(name) is not None
            for pattern, name in ((of_user, user), (of_client_id, client_id))
        )

    def fits_topic(self, topic: str) -> bool:
        pattern = self._patterns[2]
        return pattern is not None and pattern.match(topic) is not None

    @cached_property
    def begins(self) -> list[tuple[str, str]]:
        """(kind of name, text with which it begins when the entry fits): of user and client id the longer one."""
        user, client_id, topic = (
            _WILDCARD.split(pattern or "", maxsplit=1)[0] for pattern in (self.user, self.client_id, self.topic)
        )
        client = ("user", user) if len(user) >= len(client_id) else ("client_id", client_id)
        return [client] * self.owns_clients + [("topic", topic)] * (self.topic is not None)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, ...]:
        """Of user, client id and topic. No backtracking into what a `*` has matched, so that no name takes long."""
        return tuple(
            None if pattern is None else re.compile(translate(pattern.replace("[", "[[]")))
            for pattern in (self.user, self.client_id, self.topic)
        )


class Owners(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    owners: Annotated[Sequence[_Entry], Field(max_length=_MAX_OWNERS)] = ()
    prices: Prices = Prices()
    capacity: Capacity = Capacity()

    def owner(self, user: str, client_id: str) -> Owner:
        """The owner of a client; the team UNOWNED when nobody is."""
        return self._first(lambda entry: entry.fits(user, client_id), user=user, client_id=client_id)

    def topic_owner(self, topic: str) -> Owner:
        """The owner of a topic; the team UNOWNED when nobody is."""
        return self._first(lambda entry: entry.fits_topic(topic), topic=topic)

    @cached_property
    def checksum(self) -> int:
        """Of all owners of clients, 63 bits, not 0: files with the same teams and patterns have one."""
        patterns = repr([(entry.team, entry.user, entry.client_id) for entry in self.owners if entry.owns_clients])
        return int.from_bytes(blake2b(patterns.encode(), digest_size=8).digest()) >> 1 or 1

    def _first(self, fits: Callable[[_Entry], bool], **names: str) -> Owner:
        """By the order of the file. The time grows with the length of the names and with the number of entries that
        begin as the names do, not with that of all entries."""
        numbers: list[int] = []
        for (kind, length), by_text in self._by_beginning.items():
            if kind in names:
                numbers += by_text.get(names[kind][:length], ())
        entry = next((self.owners[number] for number in sorted(numbers) if fits(self.owners[number])), None)
        return Owner(UNOWNED) if entry is None else Owner(entry.team, entry.contact, entry.page)

    @cached_property
    def _by_beginning(self) -> dict[tuple[str, int], dict[str, list[int]]]:
        """By kind of name and length of its beginning: the numbers of the entries by that beginning."""
        numbers: dict[tuple[str, int], dict[str, list[int]]] = {}
        for number, entry in enumerate(self.owners):
            for kind, text in entry.begins:
                numbers.setdefault((kind, len(text)), {}).setdefault(text, []).append(number)
        return numbers


NO_OWNERS: Final = Owners()


def parse_owners(content: bytes) -> Owners:
    """Reads a file of owners. Raises OwnersError."""
    if len(content) > _MAX_FILE_BYTES:
        raise OwnersError(f"a file of owners has at most {_MAX_FILE_BYTES} bytes")
    try:
        return Owners.model_validate(yaml.load(content, UniqueKeys) or {})  # noqa: S506 - a SafeLoader
    except ValidationError as exc:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors()[:20])
        raise OwnersError(f"wrong owners: {faults}") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # ValueError: not UTF-8, or a date that does not exist
        raise OwnersError(f"the owners are no YAML: {one_line(exc)}") from exc
