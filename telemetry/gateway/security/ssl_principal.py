"""A client certificate's subject -> the principal's name, by ssl.principal.mapping.rules. Sans-I/O.

Sources: SslPrincipalMapper and DefaultKafkaPrincipalBuilder of Apache Kafka 4.3.
"""

import re
from collections.abc import Callable, Sequence

from telemetry.subscriptions.java.regex import JavaPattern
from telemetry.wire.errors import JavaPatternError

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)


class NoMatchingRuleError(ValueError):
    """No rule matches a subject: Kafka refuses such a client."""


def principal_mapper(rules: str) -> Callable[[str], str]:
    """Returns a function that maps distinguished names by `rules` and may raise NoMatchingRuleError.

    Raises ValueError. Patterns run in linear time (RE2), because clients choose the subjects of certificates.
    """
    parsed: list[tuple[re.Match[str], JavaPattern | None]] = []  # None: DEFAULT
    at = 0
    text = rules.strip() or "DEFAULT"
    while at < len(text):
        rule = _RULE.match(text, at)
        if rule is None:
            raise ValueError(f"{text[at:]!r} is no rule: DEFAULT or RULE:pattern/replacement/[LU]")
        try:
            pattern = None if rule["default"] else JavaPattern(rule["pattern"], captures=True)
        except JavaPatternError as exc:
            raise ValueError(f"{rule['pattern']!r} is no pattern: {exc}") from exc
        parsed.append((rule, pattern))
        at = rule.end()

    def map_name(name: str) -> str:
        for rule, pattern in parsed:
            if pattern is None:
                return name
            if (groups := pattern.groups(name)) is not None:
                principal = _expand(rule["replacement"], groups)
                return {"L": principal.lower(), "U": principal.upper()}.get(rule["case"], principal)
        raise NoMatchingRuleError("no rule of ssl.principal.mapping.rules matches the client's certificate")

    return map_name


def _expand(replacement: str, groups: Sequence[str]) -> str:
    """The replacement with its references and escapes resolved (Matcher.appendReplacement). A reference has as many
    digits as make a group; one to no group is text (SslPrincipalMapper.escapeLiteralBackReferences)."""

    def resolved(part: re.Match[str]) -> str:
        if part["escaped"]:
            return part["escaped"]
        digits = part["digits"]
        length = next((n for n in range(len(digits), 0, -1) if int(digits[:n]) < len(groups)), 0)
        return (groups[int(digits[:length])] if length else "$") + digits[length:]

    return re.sub(r"\\(?P<escaped>.)|\$(?P<digits>\d+)", resolved, replacement, flags=re.DOTALL)
