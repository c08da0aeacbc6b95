"""telemetry/rules/java/regex.py: what Java means, or a refusal that names the construct."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from headroom.demo.kit.jvm import Jvm
from telemetry.rules.java.regex import MAX_SUBJECT_CHARS, compile_pattern, matches
from telemetry.wire.errors import JavaPatternError, UntranslatableError

SPACED = r"""a b c A - . 1 _ ( ) (?: (?i) (?s) (?m) (?-i) (?i: (?= (?! (?<= (?> (?<n> \k<n> [ [^ ] a-c && & ^ $ | * + ?
{2} {1,} {0,2} { } \d \D \W \s \h \H \v \V \R \B \A \z \Z \Q \E \. \\ \- \x41 \u0061 \x{61} \0141
\p{Alpha} \p{Lower} \P{Punct} \p{Blank} \pL \1 \2 \e \cA \n \G \y # ~~ || --"""
TOKENS = [*SPACED.split(), "\n", "\r", " "]
REFUSED_SPACED = r"""( ) [ [a [] [b-a] [a-\d] *a a** a{2 a{x} a{,2} a{3,2} a{99999999999} \ \y [\b] \08 \x4 \u004
\x{110000} \c \k<a> (?<a>x)(?<a>y) (?<1>a) (?P<a>x) (?#c) (?j) (?i)* \p \p{} \E (?P=a) (?(1)a)"""
REFUSED = REFUSED_SPACED.split()


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", ""], ["a"]),
        ("producer-1", ["producer-1"], ["producer-11", "xproducer-1", "PRODUCER-1"]),
        ("producer.*", ["producer", "producer-x"], ["a producer", "producer\n"]),
        (r"3\.\d+", ["3.5"], ["3x5", "3.٣"]),
        (r"a++b", ["aab"], ["a"]),
        (r"(?>a|ab)c", ["ac"], ["abc"]),
        (r"(?<app>[a-z]+)-\k<app>", ["x-x"], ["x-y"]),
        (r"(a)(b)\2\1", ["abba"], ["abab"]),
        (r"\p{Alpha}+\P{Alpha}", ["abc1"], ["abc", "é1"]),
        (r"[\p{Upper}\d_]+", ["A1_"], ["a"]),
        (r"[a-c[x-z]]+", ["axz"], ["d"]),
        (r"[^a[b]]", ["c"], ["a", "b"]),
        (r"[]a]+", ["]a"], ["b"]),
        (r"[a-]+", ["-a"], ["b"]),
        (r"a\h*b", ["a \tb", "a\u3000b"], ["a\nb"]),
        (r"a\Rb", ["a\r\nb", "a\u2028b"], ["ab"]),
        (r"a.b", ["axb"], ["a\nb", "a\rb", "a\u2028b"]),
        (r"(?s)a.b", ["a\nb"], ["ab"]),
        (r"a(?i)b|c", ["ab", "aB", "C"], ["AB"]),
        (r"(?i:a)b", ["Ab"], ["AB"]),
        (r"(?i)s", ["S"], ["\u017f"]),
        (r"(?i)[^a]", ["b"], ["A", "a"]),
        (r"(?i)(a)\1", ["aA"], ["ab"]),
        (r"\Qa.b*\E*", ["a.b", "a.b**"], ["axb"]),
        (r"\Q1\E", ["1"], [r"\x31"]),
        (r"\x41\u0042\x{1d4b3}\0103\cA\e\t", ["AB𝒳C\x01\x1b\t"], [""]),
        ("\\ud835\\udcb3", ["𝒳"], [""]),
        (r"a$", ["a"], ["a\nb", "a\n"]),
        (r"a$\n", ["a\n"], ["a"]),
        (r"a\Z\r\n", ["a\r\n"], ["a"]),
        (r"a\r$\n", [], ["a\r\n"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"(?m)a$\n^b", ["a\nb"], ["ab"]),
        (r"\B", [""], ["a"]),
        (r"a{2}b{1,}c{0,2}", ["aab", "aabbcc"], ["ab"]),
        (r"a{2", [], []),
        (r"~~||--&&", ["~~", "--&&"], ["~"]),
    ],
)
def test_means_what_java_means(pattern: str, yes: list[str], no: list[str]) -> None:
    if not yes and not no:
        with pytest.raises(JavaPatternError):
            compile_pattern(pattern)
        return
    compiled = compile_pattern(pattern)
    assert [subject for subject in yes if not matches(compiled, subject)] == []
    assert [subject for subject in no if matches(compiled, subject)] == []


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("[a-z&&[^b]]", "&&"),
        (r"\p{L}", "'L'"),
        (r"\pL", "'L'"),
        (r"\p{IsLatin}", "IsLatin"),
        (r"\G", r"\G"),
        (r"\X", r"\X"),
        (r"\N{DIGIT ONE}", r"\N"),
        (r"\b{g}", r"\b"),
        ("(?x)a b", "'x'"),
        ("(?iu)a", "'u'"),
        ("{2}", "repetition of nothing"),
        ("(?<=a|bc)d", "fixed-width"),
        (r"(a\1)", "group 1"),
        (r"\2(a)", "group 2"),
        ("(" * 101 + ")" * 101, "more than 100 groups"),
        ("[" * 103 + "a" + "]" * 103, "more than 100 classes"),
    ],
)
def test_what_cannot_be_expressed_is_named(pattern: str, named: str) -> None:
    with pytest.raises(UntranslatableError, match=re.escape(named)):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_java_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(JavaPatternError) as refused:
        compile_pattern(pattern)
    assert not isinstance(refused.value, UntranslatableError)


def test_only_the_beginning_of_a_long_subject_is_looked_at() -> None:
    assert matches(compile_pattern("x*"), "x" * MAX_SUBJECT_CHARS + "y")
    assert not matches(compile_pattern("x*y"), "x" * MAX_SUBJECT_CHARS + "y")


@given(st.text(max_size=30) | st.lists(st.sampled_from(TOKENS), max_size=10).map("".join))
def test_junk_compiles_or_is_refused(junk: str) -> None:
    try:
        compiled = compile_pattern(junk)
    except JavaPatternError:
        return
    matches(compiled, "aab-1")


@pytest.mark.java
@pytest.mark.parametrize("pattern", REFUSED)
def test_java_refuses_it_indeed(jvm: Jvm, pattern: str) -> None:
    with pytest.raises(Py4JJavaError):
        jvm.classes.java.util.regex.Pattern.compile(pattern)


@pytest.mark.java
def test_random_patterns_mean_what_they_mean_to_java(jvm: Jvm) -> None:
    rng = random.Random(23)
    compared = 0
    for _ in range(1_500):
        pattern = "".join(rng.choices(TOKENS, k=rng.randint(1, 6)))
        try:
            theirs = jvm.classes.java.util.regex.Pattern.compile(pattern)
        except Py4JJavaError:
            theirs = None
        try:
            ours = compile_pattern(pattern)
        except UntranslatableError:
            continue
        except JavaPatternError:
            assert theirs is None, pattern
            continue
        assert theirs is not None, pattern
        for subject in ["".join(rng.choices("abcA-1. \n\r_&^[]\\\u2028é", k=rng.randint(0, 4))) for _ in range(4)]:
            assert matches(ours, subject) == theirs.matcher(subject).matches(), (pattern, subject)
            compared += 1
    assert compared > 1_000
