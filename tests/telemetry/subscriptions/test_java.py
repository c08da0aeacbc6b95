"""What is Java's in subscriptions, beside a live JDK: iteration orders, patterns, subjects of certificates."""

import itertools
import random
import re
import ssl
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.hash import ConcurrentMapKeys, hash_set, hash_set_of
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS, JavaPattern
from telemetry.subscriptions.java.x500_name import CertificateError, subject_name
from telemetry.subscriptions.subscription_id import instance_subscription_id, subscription_crc
from telemetry.wire.errors import JavaPatternError, UntranslatableError
from tests.kit.certificates import CertificateAuthority
from tests.oracle.certificates_oracle import certificate_of, run_principals, their_name

A = bytes.fromhex("00112233445566778899aabbccddeeff")
B = bytes.fromhex("0000000000000000000000000000002a")
C = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
PARTITION = "org.apache.kafka.client.producer.partition."


@pytest.mark.parametrize(
    ("client_instance_id", "metrics", "interval_ms", "crc", "expected"),
    [
        (A, [], 300_000, 3569834974, -725132322),
        (A, ["*"], 30_000, 3626624783, -668342513),
        (B, [], 300_000, 3569834974, -725132300),
        (B, ["*"], 30_000, 3626624783, -668342491),
        (C, [], 300_000, 3569834974, -2037058986),
        (C, ["*"], 30_000, 3626624783, -1971695993),
        (A, ["org.apache.kafka.producer.", "org.apache.kafka.consumer."], 60_000, 3354424504, -940542792),
        (A, [f"{PARTITION}latency", f"{PARTITION}queue."], 30_000, 2352111663, -1942855633),
        (A, ["métrique"], 100, 3907624078, -387343218),
    ],
)
def test_subscription_id_vectors(
    client_instance_id: bytes, metrics: list[str], interval_ms: int, crc: int, expected: int
) -> None:
    assert subscription_crc(metrics, interval_ms) == crc
    assert instance_subscription_id(crc, client_instance_id) == expected


def test_map_that_grows_has_each_key_once_until_it_is_removed() -> None:
    keys, names = ConcurrentMapKeys(), [f"sub-{n}" for n in range(60)]
    for name in names * 2:
        keys.put(name)
    assert sorted(keys) == sorted(names) == sorted(hash_set(names * 2))
    for name in names:
        keys.remove(name)
    assert list(keys) == []


@pytest.mark.java
def test_iteration_orders_match_the_jdk(jvm: Jvm) -> None:
    rng = random.Random(11)
    util = jvm.classes.java.util
    for _ in range(60):
        # At most 4 elements share a hash code, or in one of three cases 9, which makes a table of 16 or 32 grow; with
        # 10 the JDK would turn a bucket into a tree.
        pairs = ("Aa", "BB")
        drawn = [f"{a}{b}{n}" for a in pairs for b in pairs for n in range(40)]
        words = rng.choices([*drawn, *(f"métrique.𝒳{n}" for n in range(40))], k=60)
        words = words[: rng.choice([3, 12, 13, 25, 60])]
        if rng.random() < 1 / 3:
            colliding = ["".join(parts) for parts in itertools.product(pairs, repeat=4)]
            words = rng.sample(colliding, rng.choice([8, 9])) + words[:3]
        theirs, presized = util.HashSet(), util.HashSet(words)
        map_keys, ours = util.concurrent.ConcurrentHashMap(), ConcurrentMapKeys()
        for word in words:
            theirs.add(word)
            if rng.random() < 0.2 and map_keys.containsKey(word):
                map_keys.remove(word)
                ours.remove(word)
            else:
                map_keys.put(word, 1)
                ours.put(word)
        assert hash_set(words) == list(theirs)
        assert hash_set_of(words) == list(presized)
        assert list(ours) == list(map_keys.keySet())


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


@pytest.fixture
def issued(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


def certificate(authority: CertificateAuthority, subject: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.issue("client", subject)[0].read_text())


@pytest.mark.java
@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("/C=DE/O=Acme, Inc/CN=alice", "CN=alice,O=Acme\\, Inc,C=DE"),
        ("/UID=u1/CN=a=b#c,d\\+e<f>;g\\\\h", "CN=a\\=b\\#c\\,d\\+e\\<f\\>\\;g\\\\h,UID=u1"),
        # An eIDAS certificate of a natural person.
        (
            "/C=DE/CN=Erika Mustermann/GN=Erika/SN=Mustermann/serialNumber=PNODE-123/title=Dr.",
            "2.5.4.12=#0c0344722e,2.5.4.5=#1309504e4f44452d313233,2.5.4.4=#0c0a4d75737465726d616e6e,"
            "2.5.4.42=#0c054572696b61,CN=Erika Mustermann,C=DE",
        ),
        ("/CN=alice/emailAddress=a@b", "1.2.840.113549.1.9.1=#1603614062,CN=alice"),
    ],
)
def test_subjects_of_issued_certificates(jvm: Jvm, issued: CertificateAuthority, subject: str, name: str) -> None:
    encoded = certificate(issued, subject)
    assert subject_name(encoded) == their_name(jvm, encoded) == name


@pytest.mark.java
def test_drawn_certificates_have_javas_names(jvm: Jvm) -> None:
    assert run_principals(jvm, 20_261_126, 400) == []


def test_certificate_without_a_subject_has_an_empty_name() -> None:
    assert subject_name(certificate_of(b"\x30\x00")) == ""


def test_damaged_certificates_raise_certificate_error(issued: CertificateAuthority) -> None:
    whole = certificate(issued, "/CN=alice/serialNumber=7")
    for cut in range(len(whole)):
        with pytest.raises(CertificateError):
            subject_name(whole[:cut])
    for junk in (b"\x30\x80", b"\x1f\x81\x00", b"\x30\x85\x00\x00\x00\x00\x00", whole + b"\x00\x00"):
        with pytest.raises(CertificateError):
            subject_name(junk)
    with pytest.raises(CertificateError):
        subject_name(certificate_of(bytes.fromhex("300a310830060602508013 00".replace(" ", ""))))
