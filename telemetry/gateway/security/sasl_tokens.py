"""The user that a client's first SASL token names, read as Kafka's own SASL servers read it. Sans-I/O.

Sources: ScramMessages.ClientFirstMessage, ScramFormatter.username and ScramExtensions (RFC 5802), PlainSaslServer
(RFC 4616), OAuthBearerClientInitialResponse (RFC 7628) of Apache Kafka 4.3. A token that these refuse names nobody.
The name is a claim: it counts only after the broker accepted the authentication. The owner of a delegation token
(KIP-48) is not in it: the cluster lists owners (DescribeDelegationToken).
"""

import base64
import binascii
import itertools
import re
from collections.abc import Callable, Mapping

import orjson

from exporters.identity import UNREAD_PRINCIPAL

SCRAM = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
READABLE = SCRAM | {PLAIN, OAUTHBEARER}  # mechanisms whose tokens are understood

_MECHANISM = re.compile(r"[A-Z0-9_-]{1,20}")  # RFC 4422

_SASLNAME = r"(?:[\x01-\x2B\x2D-\x3C\x3E-\x7F]|=2C|=3D)+"
_VALUE = r"[\x01-\x2B\x2D-\x7F]+"
_SCRAM_FIRST = re.compile(
    rf"n,(a=(?P<authzid>{_SASLNAME}))?,(m={_VALUE},)?n=(?P<saslname>{_SASLNAME}),"
    rf"r=[\x21-\x2B\x2D-\x7E]+(?P<extensions>(,[A-Za-z]+={_VALUE})*)"
)
_OAUTH_FIRST = re.compile(rf"n,(a=(?P<authzid>{_SASLNAME}))?,\x01(?P<kvpairs>([A-Za-z]+=[\x21-\x7E \t\r\n]+\x01)*)\x01")
_OAUTH_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_MAX_TOKENS = 100_000
_MAX_UNKNOWN = 1_000


def recorded_principal(name: str | None, mechanism: str) -> str:
    """The principal to record: `name`, or a name that no user can have, as users named so are recorded as unknown.

    None: it cannot be read off the wire.
    """
    if name is None or name.startswith(UNREAD_PRINCIPAL):
        return f"{UNREAD_PRINCIPAL}{mechanism if _MECHANISM.fullmatch(mechanism) else 'SASL'} principal>"
    return name


def read_claim(mechanism: str, token: bytes, claim: str) -> tuple[str | None, str]:
    """The user that a client's first token claims to be, and the id of the delegation token that it authenticates with.

    The user is None when it cannot be read, or owns the delegation token; the id is empty without one (KIP-48).
    `claim`: the claim of an OAUTHBEARER token that names the principal (sasl.oauthbearer.sub.claim.name).
    """
    if mechanism == PLAIN:
        fields = token.split(b"\x00")
        return (fields[1].decode("utf-8", "replace") or None) if len(fields) == 3 else None, ""
    if mechanism == OAUTHBEARER:
        return _oauth_user(token, claim), ""
    match = _SCRAM_FIRST.fullmatch(token.decode("utf-8", "replace")) if mechanism in SCRAM else None
    if match is None:
        return None, ""
    name = match["saslname"].replace("=2C", ",").replace("=3D", "=")
    extensions = dict(pair.split("=", 1) for pair in match["extensions"].split(",") if pair)
    return (None, name) if extensions.get("tokenauth", "").lower() == "true" else (name, "")


def _oauth_user(token: bytes, claim: str) -> str | None:
    match = _OAUTH_FIRST.fullmatch(token.decode("utf-8", "replace"))
    if match is None:
        return None
    pairs = dict(pair.split("=", 1) for pair in match["kvpairs"].split("\x01") if pair)
    auth = _OAUTH_AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        return None
    parts = auth["token"].split(".")
    if len(parts) != 3:
        return None  # an opaque token, no JWT
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    user = claims.get(claim) if isinstance(claims, dict) else None
    return user if isinstance(user, str) and user else None


class TokenOwners:
    """`unknown` is called on the first lookup of an unknown token, once until the next `replace`.

    The reader of the cluster's tokens calls `replace` after each attempt, with the previous owners if it failed.
    """

    def __init__(self, unknown: Callable[[], None] = lambda: None) -> None:
        self.unknown = unknown
        self.owners: Mapping[str, str] = {}
        self.readings = 0  # calls of `replace`
        self._asked_for: set[str] = set()

    def owner_of(self, token_id: str) -> str | None:
        """The owner's name without its type; None when it is not known."""
        owner = self.owners.get(token_id)
        if owner is None and token_id not in self._asked_for and len(self._asked_for) < _MAX_UNKNOWN:
            self._asked_for.add(token_id)
            self.unknown()
        return owner

    def replace(self, owners: Mapping[str, str]) -> None:
        """`owners`: id -> owner, of all tokens that Headroom may see."""
        self.owners = dict(itertools.islice(owners.items(), _MAX_TOKENS))
        self.readings += 1
        self._asked_for.clear()
