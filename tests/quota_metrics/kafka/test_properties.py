"""Client properties as Java parses them, and the resulting connection settings."""

from __future__ import annotations

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

from headroom.demo.jvm import Jvm
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.oauthbearer import unsecured
from quota_metrics.kafka.properties import misspelled, read_properties, security
from quota_metrics.kafka.sasl import OAuthBearer, Plain, SaslError, Scram
from quota_metrics.kafka.tls import tls_context
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


def test_jks_store_is_refused_with_conversion_advice(tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        with pytest.raises(PropertiesError, match=rf"{name}=.*trust.jks cannot be used: it is a JKS store; convert it"):
            security({"security.protocol": "SSL", name: str(store), "ssl.truststore.type": "JKS"})


def test_pkcs12_stores_are_loaded(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.issue("mine")
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.trust_store("trust")),
        "ssl.truststore.password": "trust",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.key_store("mine", "key")),
        "ssl.keystore.password": "key",
    }
    assert len(tls_context(properties).get_ca_certs()) == 1
    with pytest.raises(PropertiesError, match=r"mine\.p12 cannot be used: it is neither PEM nor PKCS12"):
        security(properties | {"ssl.keystore.password": "other"})
    with pytest.raises(PropertiesError, match=r"ca\.p12 cannot be used: it has no private key"):
        security(properties | {"ssl.keystore.location": str(tmp_path / "ca.p12"), "ssl.keystore.password": "trust"})


def test_invalid_properties_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match="cannot be read: No such file"):
        read_properties(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PropertiesError, match="'ÿþ' is no property of a Kafka client"):
        read_properties(tmp_path / "binary")
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


@pytest.mark.java
def test_every_property_of_kafkas_clients_is_accepted(jvm: Jvm) -> None:
    clients = jvm.classes.org.apache.kafka.clients
    configs = (clients.consumer.ConsumerConfig, clients.producer.ProducerConfig, clients.admin.AdminClientConfig)
    names = {str(name) for config in configs for name in config.configNames()}
    assert len(names) > 100
    assert misspelled(dict.fromkeys(names, "")) == []


def test_trust_store_may_contain_unicode_comments(tmp_path: Path) -> None:
    store = tmp_path / "übergeordnet.pem"
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    pem = f"{begin}{Path(certifi.where()).read_text().split(begin)[1].split(end)[0]}{end}\n"
    store.write_text(f"# Zertifizierungsstelle für Köln\n{pem}\n# 認証局\n{pem}", "utf-8")
    assert len(tls_context({"ssl.truststore.location": str(store)}).get_ca_certs()) == 1
    assert len(tls_context({"ssl.truststore.certificates": store.read_text("utf-8")}).get_ca_certs()) == 1


def test_tls_verifies_names_and_certificates_by_default() -> None:
    def context(**more: str) -> ssl.SSLContext:
        return tls_context({key.replace("_", "."): value for key, value in more.items()})

    assert (context().check_hostname, context().verify_mode) == (True, ssl.CERT_REQUIRED)
    unnamed = context(ssl_endpoint_identification_algorithm="")
    assert (unnamed.check_hostname, unnamed.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert context(enable_ssl_certificate_verification="false").verify_mode == ssl.CERT_NONE


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


def test_versions_of_tls_are_limited() -> None:
    def limits(**more: str) -> tuple[int, int]:
        context = tls_context({f"ssl.{name.replace('_', '.')}": value for name, value in more.items()})
        return context.minimum_version, context.maximum_version

    version = ssl.TLSVersion
    assert limits(protocol="TLSv1.3", enabled_protocols="TLSv1.3,TLSv1.2") == (version.TLSv1_2, version.TLSv1_3)
    assert limits(enabled_protocols="TLSv1.3") == (version.TLSv1_3, version.TLSv1_3)
    assert limits(protocol="TLSv1.2")[1] == version.TLSv1_2
    assert limits(protocol="TLSv1.2", enabled_protocols="TLSv1.2,TLSv1.3")[1] == version.TLSv1_2
    assert limits()[1] == version.MAXIMUM_SUPPORTED


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
    own.load_cert_chain(*authority.issue("issuer"))
    client = "x.OAuthBearerLoginModule required clientId=me clientSecret=it"
    with issuer(b'{"access_token": "abc"}', own) as (url, _):
        for trusted in (
            {"sasl.jaas.config": f"{client} ssl.truststore.type=PEM ssl.truststore.location='{authority.ca}';"},
            {"sasl.jaas.config": f"{client};", "https.ca.location": str(authority.ca)},
            {"sasl.jaas.config": f"{client};", "https.ca.pem": authority.ca.read_text()},
        ):
            asking = {**sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url), **trusted}
            assert b"Bearer abc\x01" in first_message(asking)
        with pytest.raises(SaslError, match="certificate verify failed"):
            first_message({**asking, "https.ca.pem": ""})


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"access_token": 1}'])
def test_invalid_token_response_raises_sasl_error(answer: bytes) -> None:
    with issuer(answer) as (url, _), pytest.raises(SaslError, match="no token from"):
        client = {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": "it"}
        first_message(sasl("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url, **client))
