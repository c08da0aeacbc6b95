"""Subjects of client certificates as principals, by ssl.principal.mapping.rules."""

from __future__ import annotations

import pytest

from telemetry.gateway.security.ssl_principal import (
    MappingRuleError,
    NoMatchingRuleError,
    principal_mapper,
)

NAME = "CN=alice,O=Acme\\, Inc,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "alice"),
        ("RULE:^CN=(.*?),.*$/$1/U", "ALICE"),
        ("RULE:^OU=(.*?),.*$/$1/,RULE:^CN=(.*?),O=(.*?),C=.*$/$1@$2/L", "alice@acme\\, inc"),
        ("RULE:^OU=(.*)$/$1/L, DEFAULT", NAME),
    ],
)
def test_mapping_rules_are_applied(rules: str, principal: str) -> None:
    assert principal_mapper(rules)(NAME) == principal


def test_subject_without_matching_rule_is_refused() -> None:
    with pytest.raises(NoMatchingRuleError):
        principal_mapper("RULE:^OU=(.*)$/$1/")(NAME)


def test_backtracking_pattern_is_matched_in_linear_time() -> None:
    """Python's own engine would need hours for this subject."""
    mapper = principal_mapper("RULE:^CN=((a+)+)$/$2/,DEFAULT")
    assert mapper("CN=" + "a" * 30) == "a" * 30
    hostile = "CN=" + "a" * 40 + "!"
    assert mapper(hostile) == hostile


def test_unmatched_groups_are_empty_and_long_names_are_kept() -> None:
    assert principal_mapper("RULE:^CN=(?:(x)|(.*))$/$1-$2-$3/")("CN=" + "y" * 5_000) == "-" + "y" * 5_000 + "-"


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*?)", "NONE", "RULE:(/x/", "DEFAULT,,", r"RULE:(a)\1/x/"])
def test_invalid_rules_raise_mapping_rule_error(rules: str) -> None:
    with pytest.raises(MappingRuleError):
        principal_mapper(rules)
