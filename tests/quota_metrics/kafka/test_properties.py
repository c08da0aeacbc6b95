"""Client properties as Java parses them, their values, and the resulting connection settings."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path

import certifi
import pytest

from quota_metrics.kafka.authentication import OAuthBearer, Plain, SaslError, Scram
from quota_metrics.kafka.bootstrap_servers import BootstrapError, check_protocol, parse_bootstrap_servers
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.jaas import JaasError, parse_jaas
from quota_metrics.kafka.oauthbearer import unsecured
from quota_metrics.kafka.properties import read_properties, security
from tests.kit.certificates import CertificateAuthority
from tests.kit.proxy import ProxyHandler

PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="al\\"ice" password="p;=w";'


def test_empty_properties_mean_plaintext() -> None:
    assert (security({}).tls, security({}).sasl) == (None, None)


def sasl(mechanism: str, **more: str) -> Mapping[str, str]:
    named = {key.replace("_", "."): value for key, value in more.items()}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **named}


def test_credentials_come_from_jaas_or_properties() -> None:
    assert security(sasl("PLAIN", sasl_jaas_config=PLAIN_JAAS)).sasl == Plain('al"ice', "p;=w")
    assert security(sasl("PLAIN", sasl_username="a", sasl_password="b")).sasl == Plain("a", "b")
    scram = security(sasl("SCRAM-SHA-512", sasl_username="a", sasl_password="b")).sasl
    assert isinstance(scram, Scram)
    assert (scram.digest, scram.username, scram.password) == ("sha512", "a", "b")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not one of PLAINTEXT"),
        (sasl("GSSAPI"), "sasl.mechanism=GSSAPI is not one of PLAIN"),
        ({"security.protocol": "SASL_SSL"}, r"sasl.mechanism=\(none\)"),
        (sasl("PLAIN"), "needs a username"),
        (sasl("SCRAM-SHA-256", sasl_username="a"), "needs a username and password"),
        (sasl("PLAIN", sasl_jaas_config="x required username='a' password='b'"), "does not end with a semicolon"),
        (
            sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url="http://x"),
            "needs a client: sasl.oauthbearer.client",
        ),
        (
            sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url="file:///x", sasl_oauthbearer_extensions="auth=x"),
            "the SASL extension 'auth' is none",
        ),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "SSLv3"}, "SSLv3 is not one of TLSv1"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1,TLSv1.3"}, "leaves out a version"),
        ({"security.protocol": "SSL", "ssl.protocol": "SSL"}, "ssl.protocol=SSL is not one of TLS"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": certifi.where(), "ssl.truststore.type": "pkcs12"},
            "is PEM and not of the type pkcs12",
        ),
        ({"security.protocol": "SSL", "ssl.crl.location": "/nowhere"}, "ssl.crl.location=/nowhere cannot be read"),
        (sasl("OAUTHBEARER"), "needs sasl.oauthbearer.token.endpoint.url"),
        (sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url="ftp://x"), "needs sasl.oauthbearer"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"security.protocol": "SSL", "ssl.truststore.location": __file__ + "/x"}, "cannot be read: Not a directory"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "x"}, "trusted certificates cannot be read"),
        ({"security.protocol": "SSL", "ssl.keystore.certificate.chain": "x"}, "the client certificate and key"),
    ],
)
def test_invalid_properties_are_refused(properties: Mapping[str, str], message: str) -> None:
    with pytest.raises(PropertiesError, match=message):
        security(properties)


def test_invalid_properties_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match="cannot be read: No such file"):
        read_properties(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PropertiesError, match="'ÿþ' is no property of a Kafka client"):
        read_properties(tmp_path / "binary")
    (tmp_path / "kerberos").write_text("sasl.mechanisms=GSSAPI\nsasl.kerberos.service.name=kafka\n")
    with pytest.raises(PropertiesError, match="GSSAPI is not spoken by Headroom itself"):
        read_properties(tmp_path / "kerberos")
    (tmp_path / "escape").write_text(r"sasl.password=\user")
    with pytest.raises(PropertiesError, match=r"is not a properties file: .*without four hexadecimal digits"):
        read_properties(tmp_path / "escape")


def test_file_is_read_in_latin_1_and_its_values_are_trimmed(tmp_path: Path) -> None:
    """As by Java's clients: other characters are escaped."""
    file = tmp_path / "client.properties"
    file.write_bytes(
        b"security.protocol=SASL_PLAINTEXT \t\r\nsasl.mechanism=PLAIN\n"
        b"sasl.jaas.config=x.PlainLoginModule required \\\n  username='K\xfc' password='\\u20ac';\n"
    )
    assert security(read_properties(file)).sasl == Plain("Kü", "€")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("securty.protocol=SSL", "'securty.protocol' is unknown, did you mean security.protocol?"),
        ("SASL.mechanism=PLAIN", "'SASL.mechanism' is unknown, did you mean sasl.mechanism?"),
        ("this line is wrong", "'this' is no property of a Kafka client"),
        ('username="alice" password="secret";', "'username' is no property of a Kafka client"),
    ],
)
def test_line_without_an_effect_is_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=PLAINTEXT\n{line}\nclient.rack=a\ncom.example.plugin.name=b\n")
    with pytest.raises(PropertiesError) as refused:
        read_properties(file)
    assert str(refused.value) == f"{file}: {message}"


def first_message(properties: Mapping[str, str]) -> bytes:
    mechanism = security(properties).sasl
    assert isinstance(mechanism, OAuthBearer)
    return next(mechanism.conversation())


def test_token_file_is_read_at_each_connection(tmp_path: Path) -> None:
    token = tmp_path / "a token"
    properties = sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=token.as_uri())
    with pytest.raises(SaslError, match="cannot be read"):
        first_message(properties)
    token.write_text("one\n")
    assert b"Bearer one\x01" in first_message(properties)
    token.write_text("two\n")
    assert b"Bearer two\x01" in first_message(properties)


def test_unsecured_token_has_claims_and_lifetime() -> None:
    header, body, signature = unsecured({"sub": "alice"}, now_s=lambda: 1000.0).split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert json.loads(base64.urlsafe_b64decode(body + "==")) == {"sub": "alice", "iat": 1000.0, "exp": 4600.0}
    assert signature == ""
    jaas = (
        "x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice unsecuredLoginNumberClaim_age='7'"
        " unsecuredLoginListClaim_scope='|a|b' unsecuredLoginLifetimeSeconds='60' unsecuredLoginExtension_traceId=t;"
    )
    token, extension = first_message(sasl("OAUTHBEARER", sasl_jaas_config=jaas)).split(b"Bearer ")[1].split(b"\x01")[:2]
    claims = json.loads(base64.urlsafe_b64decode(token.split(b".")[1] + b"=="))
    assert (claims["sub"], claims["age"], claims["scope"]) == ("alice", 7, ["a", "b"])
    assert (claims["exp"] - claims["iat"], extension) == (60, b"traceId=t")


def test_delegation_token_is_named_as_one() -> None:
    jaas = "x.ScramLoginModule required username=id password='h;mac' tokenauth=true;"
    mechanism = security(sasl("SCRAM-SHA-256", sasl_jaas_config=jaas)).sasl
    assert isinstance(mechanism, Scram)
    assert next(mechanism.conversation()).endswith(b",tokenauth=true")


@contextmanager
def issuer(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A token endpoint: its URL, and the requests that it received."""
    asked: list[tuple[str, bytes]] = []

    class Handler(ProxyHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.headers["Authorization"], content))
            self.reply(200, (), answer)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "client",
    [
        {"sasl_jaas_config": "x.OAuthBearerLoginModule required clientId=me clientSecret='i~t' scope=kafka"
                             " extension_logicalCluster='lkc-1' extension_identityPoolId=pool;"},
        {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": "i~t", "sasl_oauthbearer_scope": "kafka",
         "sasl_oauthbearer_extensions": "logicalCluster=lkc-1, identityPoolId=pool"},
        {"sasl_oauthbearer_client_credentials_client_id": "me",
         "sasl_oauthbearer_client_credentials_client_secret": "i~t",
         "sasl_oauthbearer_scope": "kafka", "sasl_jaas_config": "x.OAuthBearerLoginModule required clientId=other"
                             " extension_logicalCluster='lkc-1' extension_identityPoolId=pool;"},
    ],
)  # fmt: skip
def test_token_is_requested_by_both_families_names(client: Mapping[str, str]) -> None:
    with issuer(b'{"access_token": "abc"}') as (url, asked):
        message = first_message(sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url, **client))
        encoded = {"sasl_oauthbearer_header_urlencode": "true"}
        first_message(sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url, **client, **encoded))
    assert message == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool\x01\x01"
    header, body = asked[0]
    assert header == "Basic " + base64.b64encode(b"me:i~t").decode()
    assert body == b"grant_type=client_credentials&scope=kafka"
    assert asked[1][0] == "Basic " + base64.b64encode(b"me:i%7Et").decode()


def test_issuer_is_trusted_by_both_families_names(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate, key = authority.issue("issuer")
    own.load_cert_chain(certificate, key)
    client = "x.OAuthBearerLoginModule required clientId=me clientSecret=it"
    with issuer(b'{"access_token": "abc"}', own) as (url, _):
        for trusted in (
            {"sasl.jaas.config": f"{client} ssl.truststore.type=PEM ssl.truststore.location='{authority.ca}';"},
            {"sasl.jaas.config": f"{client};", "https.ca.location": str(authority.ca)},
            {"sasl.jaas.config": f"{client};", "https.ca.location": str(certificate)},  # Java trusts it, too
            {"sasl.jaas.config": f"{client};", "https.ca.pem": authority.ca.read_text()},
            {"sasl.jaas.config": f"{client};", "https.ca.pem": authority.ca.read_text().replace("\n", " ")},
        ):
            asking = {**sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url), **trusted}
            assert b"Bearer abc\x01" in first_message(asking)
        with pytest.raises(SaslError, match="certificate verify failed"):
            first_message({**asking, "https.ca.pem": ""})


@pytest.mark.parametrize("location", ["probe", "directory"])
def test_librdkafkas_other_places_of_certificates(location: str, tmp_path: Path) -> None:
    """The system's, and a directory of hashed names; Headroom's own certificates are in neither."""
    value = str(tmp_path) if location == "directory" else location
    context = security({"security.protocol": "SSL", "ssl.ca.location": value}).tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"access_token": 1}'])
def test_invalid_token_response_raises_sasl_error(answer: bytes) -> None:
    with issuer(answer) as (url, _), pytest.raises(SaslError, match="no token from"):
        client = {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": "it"}
        first_message(sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url, **client))


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", [("a", 1, "")]),
        (" a:1 , b:2,,\n", [("a", 1, ""), ("b", 2, "")]),
        ("SASL_SSL://host:9092,ssl://host:9093/ignored", [("host", 9092, "SASL_SSL"), ("host", 9093, "SSL")]),
        ("EXTERNAL://host:9092", [("host", 9092, "EXTERNAL")]),
        ("[::1]:9092,::1:9092,PLAINTEXT://[fe80::1%eth0]:1",
         [("::1", 9092, ""), ("::1", 9092, ""), ("fe80::1%eth0", 1, "PLAINTEXT")]),
        ("b-1.msk_x.example:09098,bücher.example:1", [("b-1.msk_x.example", 9098, ""), ("bücher.example", 1, "")]),
    ],
)  # fmt: skip
def test_servers(text: str, servers: list[tuple[str, int, str]]) -> None:
    assert parse_bootstrap_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "host", "SSL://host", ":9092", "a:0", "a:65536", "a:+1", "a:1;b:2", "a:1 b:2", "::1", "[::1]",
     "g::1:9092", "://a:1", "user@a:1", "a:1/path", "a" * 64 + ".example:1", "a:\u0661"],
)  # fmt: skip
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(BootstrapError, match="is not HOST:PORT"):
        parse_bootstrap_servers(text)


def test_protocol_must_not_contradict_the_properties() -> None:
    servers = parse_bootstrap_servers("EXTERNAL://a:1,b:2,SASL_SSL://[::1]:3")
    check_protocol(servers, "SASL_SSL")
    with pytest.raises(BootstrapError, match=r"SASL_SSL://\[::1\]:3 contradicts security.protocol=PLAINTEXT"):
        check_protocol(servers, "PLAINTEXT")


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("username='K' password='s3cr;t with=chars'", {"username": "K", "password": "s3cr;t with=chars"}),
        ('username="$ConnectionString" /* Event Hubs */ password="Endpoint=sb://n/;Key=a+b/c="',
         {"username": "$ConnectionString", "password": "Endpoint=sb://n/;Key=a+b/c="}),
        ("ssl.truststore.location='/x' extension_logicalCluster=lkc-1",
         {"ssl.truststore.location": "/x", "extension_logicalCluster": "lkc-1"}),
    ],
)  # fmt: skip
def test_options_of_the_login_module(options: str, expected: dict[str, str]) -> None:
    assert parse_jaas(f"{PLAIN} required {options};") == (PLAIN, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{PLAIN} required username='a'", "does not end with a semicolon"),
        (f"{PLAIN} username='a';", "no control flag"),
        (f"{PLAIN} required username='a' password=12345;", "password has no value"),
        (f"{PLAIN} required username='a' password=/etc/x;", "password has no value"),
        (f"{PLAIN} required username;", "username has no value"),
        (f"{PLAIN} required; {PLAIN} required;", "it has 2 login modules"),
        ("", "it has 0 login modules"),
        ("; required;", "no name of a login module"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "Kafka does not allow"),
    ],
)
def test_what_kafka_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(JaasError, match=message) as refused:
        parse_jaas(text)
    assert "12345" not in str(refused.value)
