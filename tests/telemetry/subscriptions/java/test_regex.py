"""telemetry/subscriptions/java/regex.py matches as Java does, or refuses the pattern and names the construct."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS, JavaPattern
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
        (r"\Qa.b*\E*", ["a.b", "a.b**"], ["axb"]),
        (r"\Q1\E", ["1"], [r"\x31"]),
        (r"\x41\u0042\x{1d4b3}\0103\cA\e\t", ["AB𝒳C\x01\x1b\t"], [""]),
        ("\\ud835\\udcb3", ["𝒳"], [""]),
        (r"a$", ["a"], ["a\nb", "a\n"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"(?<app>[a-z]+)-1", ["x-1"], ["-1"]),
        (r"^(?:a$|b(c\Z)?|$)$", ["a", "b", "bc", ""], ["ab", "a\n"]),
        (r"(?m)a$", ["a"], ["a\n"]),
        (r"a*?b{0,1000}?", ["aab"], ["ba"]),
        (r"\B", [""], ["a"]),
        (r"a{2}b{1,}c{0,2}", ["aab", "aabbcc"], ["ab"]),
        (r"a{2", [], []),
        (r"~~||--&&", ["~~", "--&&"], ["~"]),
    ],
)
def test_patterns_match_as_in_java(pattern: str, yes: list[str], no: list[str]) -> None:
    if not yes and not no:
        with pytest.raises(JavaPatternError):
            JavaPattern(pattern)
        return
    compiled = JavaPattern(pattern)
    assert [subject for subject in yes if not compiled.matches(subject)] == []
    assert [subject for subject in no if compiled.matches(subject)] == []


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
        ("{2}", "repetition of an empty expression"),
        ("(?=a)a", "lookahead"),
        ("(?!b)a", "negative lookahead"),
        ("(?<=a)b", "lookbehind"),
        ("(?<!a)b", "negative lookbehind"),
        ("(?>a|ab)c", "atomic group"),
        ("a++b", "possessive quantifier: '++'"),
        ("a{2,3}+b", "possessive quantifier: '{2,3}+'"),
        (r"(a)\1", r"backreference: '\1'"),
        (r"(?<n>a)\k<n>", r"backreference: '\k<n>'"),
        (r"a$\n", "before the end of the pattern"),
        (r"(a|b\Z)c", "before the end of the pattern"),
        ("(a$|b)+", "repetition of '$'"),
        ("(?m)^a", "'m'"),
        ("a{1001}", "repetition size"),
        ("((a{1,100}){1,100}){1,100}", "repetition size"),
        ("(?:.{1,400}x){1,2}" * 20, "too large"),
        ("(" * 101 + ")" * 101, "more than 100 nested groups"),
        ("[" * 103 + "a" + "]" * 103, "more than 100 nested classes"),
    ],
)
def test_untranslatable_construct_is_named_in_the_error(pattern: str, named: str) -> None:
    with pytest.raises(UntranslatableError, match=re.escape(named)):
        JavaPattern(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_patterns_invalid_in_java_are_refused(pattern: str) -> None:
    with pytest.raises(JavaPatternError) as refused:
        JavaPattern(pattern)
    assert not isinstance(refused.value, UntranslatableError)


def test_subject_is_truncated_to_the_maximum_length() -> None:
    assert JavaPattern("x*").matches("x" * MAX_SUBJECT_CHARS + "y")
    assert not JavaPattern("x*y").matches("x" * MAX_SUBJECT_CHARS + "y")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+", "(.*)*x", "(a?){30}a{30}", "([a-z]+)*-[0-9]"])
def test_backtracking_patterns_match_in_linear_time(pattern: str) -> None:
    """Patterns that a backtracking engine would match for hours."""
    assert not JavaPattern(pattern).matches("a" * (MAX_SUBJECT_CHARS - 1) + "!")


def test_subject_with_lone_surrogate_is_matched() -> None:
    assert JavaPattern("a.").matches("a\udc80")


@given(st.text(max_size=30) | st.lists(st.sampled_from(TOKENS), max_size=10).map("".join))
def test_random_patterns_compile_or_are_refused(junk: str) -> None:
    try:
        compiled = JavaPattern(junk)
    except JavaPatternError:
        return
    compiled.matches("aab-1")


@pytest.mark.java
@pytest.mark.parametrize("pattern", REFUSED)
def test_refused_patterns_are_invalid_in_java(jvm: Jvm, pattern: str) -> None:
    with pytest.raises(Py4JJavaError):
        jvm.classes.java.util.regex.Pattern.compile(pattern)


@pytest.mark.java
def test_random_patterns_match_as_in_java(jvm: Jvm) -> None:
    rng = random.Random(23)
    compared = 0
    for _ in range(3_000):
        pattern = "".join(rng.choices(TOKENS, k=rng.randint(1, 6)))
        try:
            theirs = jvm.classes.java.util.regex.Pattern.compile(pattern)
        except Py4JJavaError:
            theirs = None
        try:
            ours = JavaPattern(pattern)
        except UntranslatableError:
            continue
        except JavaPatternError:
            assert theirs is None, pattern
            continue
        assert theirs is not None, pattern
        for subject in ["".join(rng.choices("abcA-1. \n\r_&^[]\\\u2028é", k=rng.randint(0, 4))) for _ in range(4)]:
            assert ours.matches(subject) == theirs.matcher(subject).matches(), (pattern, subject)
            compared += 1
    assert compared > 1_000
