"""telemetry/subscriptions/java/regex.py matches as Java does, or refuses the pattern and names the construct."""

from __future__ import annotations

import random
import re

import pytest
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS, JavaPattern
from telemetry.wire.errors import JavaPatternError, UntranslatableError

SPACED = r"""a b c A - . 1 _ ( ) (?: (?i) (?s) (?m) (?-i) (?i: (?= (?! (?<= (?> (?<n> \k<n> [ [^ ] a-c && & ^ $ | * + ?
{2} {1,} {0,2} { } \d \D \W \s \h \H \v \V \R \B \A \z \Z \Q \E \. \\ \- \x41 \u0061 \x{61} \0141
\p{Alpha} \p{Lower} \P{Punct} \p{Blank} \pL \1 \2 \e \cA \n \G \y # ~~ || --"""
CASES = 3_000
TOKENS = [*SPACED.split(), "\n", "\r", " "]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", ""], ["a"]),
        ("producer-1", ["producer-1"], ["producer-11", "xproducer-1", "PRODUCER-1"]),
        ("producer.*", ["producer", "producer-x"], ["a producer", "producer\n"]),
        (r"3\.\d+", ["3.5"], ["3x5", "3.٣"]),
        (r"[a-]+", ["-a"], ["b"]),
        (r"a.b", ["axb"], ["a\nb", "a\rb", "a\u2028b"]),
        (r"\Qa.b*\E*", ["a.b", "a.b**"], ["axb"]),
        (r"\Q1\E", ["1"], [r"\x31"]),
        (r"\x41\x{1d4b3}\t", ["A𝒳\t"], [""]),
        (r"[\s_]\S", [" a", "\x0b!", "_a"], ["a ", " \x0b"]),
        (r"a\sb", ["a b", "a\x0bb"], ["ab", "a_b"]),
        (r"a$", ["a"], ["a\nb", "a\n"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"(?<app>[a-z]+)-1", ["x-1"], ["-1"]),
        (r"^(?:a|b(c)?|)$", ["a", "b", "bc", ""], ["ab", "a\n"]),
        (r"^a$|^b$", ["a", "b"], ["ab", "a\n"]),
        (r"a*?b{0,1000}?", ["aab"], ["ba"]),
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


REFUSED = [
    ("[a-z&&[^b]]", "&&"),
    ("[a[b]]", "'[' in a set"),
    ("[]a]", "']' in a set"),
    (r"\p{L}", r"character property: \p"),
    (r"\PL", r"character property: \P"),
    (r"\G", r"\G"),
    (r"\h", r"\h"),
    (r"\R", r"\R"),
    (r"\v", r"\v"),
    (r"\u0041", r"\u"),
    (r"\0101", r"\0"),
    (r"\N{DIGIT ONE}", r"\N"),
    (r"\bproducer\b", "word boundary"),
    ("(?x)a b", "'(?x)'"),
    ("(?i)a", "'(?i)'"),
    ("(?P<n>a)", "'(?P<'"),
    ("{2}", "repetition of nothing"),
    ("(?=a)a", "lookahead"),
    ("(?!b)a", "negative lookahead"),
    ("(?<=a)b", "lookbehind"),
    ("(?<!a)b", "negative lookbehind"),
    ("(?>a|ab)c", "atomic group"),
    ("a++b", "possessive quantifier: '++'"),
    ("a{2,3}+b", "possessive quantifier: '{2,3}+'"),
    (r"(a)\1", r"backreference: \1"),
    (r"(?<n>a)\k<n>", r"backreference: \k"),
    (r"a$\n", "before the end of the pattern"),
    (r"(a|b$)c", "before the end of the pattern"),
    (r"a\Z", r"\Z"),
    ("a{1001}", "more than 1000 repetitions"),
    ("b{2,99999999}", "more than 1000 repetitions"),
    ("((a{1,100}){1,100}){1,100}", "repetition size"),
    ("(?:.{1,400}x){1,2}" * 20, "too large"),
    ("(" * 101 + ")" * 101, "more than 100 nested groups"),
    *((pattern, "cannot express") for pattern in ("a**", "*a", "[b-a]", "(?<1>a)", r"\E", r"\C")),
]
INVALID = ["a{x}", "a{,2}", "a{2", "(", ")", "[a", "\\", "a)b(", "[^"]


@pytest.mark.parametrize(("pattern", "named"), REFUSED)
def test_what_re2_reads_otherwise_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(UntranslatableError, match=re.escape(named)):
        JavaPattern(pattern)


@pytest.mark.parametrize("pattern", INVALID)
def test_patterns_invalid_in_java_are_refused(pattern: str) -> None:
    with pytest.raises(JavaPatternError) as refused:
        JavaPattern(pattern)
    assert not isinstance(refused.value, UntranslatableError)


@pytest.mark.java
@pytest.mark.parametrize("pattern", INVALID)
def test_refused_patterns_are_invalid_in_java(jvm: Jvm, pattern: str) -> None:
    with pytest.raises(Py4JJavaError):
        jvm.classes.java.util.regex.Pattern.compile(pattern)


def test_subject_is_truncated_to_the_maximum_length() -> None:
    assert JavaPattern("x*").matches("x" * MAX_SUBJECT_CHARS + "y")
    assert not JavaPattern("x*y").matches("x" * MAX_SUBJECT_CHARS + "y")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+", "(.*)*x", "(a?){30}a{30}", "([a-z]+)*-[0-9]"])
def test_backtracking_patterns_match_in_linear_time(pattern: str) -> None:
    """Patterns that a backtracking engine would match for hours."""
    assert not JavaPattern(pattern).matches("a" * (MAX_SUBJECT_CHARS - 1) + "!")


def test_subject_with_lone_surrogate_is_matched() -> None:
    assert JavaPattern("a.").matches("a\udc80")


@pytest.mark.java
@pytest.mark.parametrize("pattern", [r"[\s-z]", r"[\s-.]", r"[\w\s-.]", r"[^\s-z]", r"[a\s-]"])
def test_a_dash_after_whitespace_in_a_set_is_a_character(jvm: Jvm, pattern: str) -> None:
    ours, theirs = JavaPattern(pattern), jvm.classes.java.util.regex.Pattern.compile(pattern)
    for subject in map(chr, range(128)):
        assert ours.matches(subject) == theirs.matcher(subject).matches(), subject


@pytest.mark.java
def test_random_patterns_match_as_in_java(jvm: Jvm) -> None:
    rng = random.Random(23)
    compared = 0
    for _ in range(CASES):
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
    assert compared > CASES / 3
