"""A CA and certificates that it signs, by the openssl command: PEM files for brokers, listeners and clients."""

import subprocess
from pathlib import Path

_EXTENSIONS = "subjectAltName=IP:127.0.0.1,DNS:{host_name}\nextendedKeyUsage=serverAuth,clientAuth\n"


class CertificateAuthority:
    """`ca` is its certificate. `issue` makes NAME.pem (certificate), NAME.key and NAME-store.pem (both, for Java)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ca = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._openssl("req", "-x509", *_new_key(self._key), "-days", "2", "-subj", "/CN=ca", "-out", str(self.ca))

    def issue(self, name: str, subject: str = "", host_name: str = "localhost") -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1 and a host name, replacing existing ones. `subject`: as in
        /C=DE/CN=x."""
        certificate, key, request = (self._directory / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self._directory / "extensions"
        extensions.write_text(_EXTENSIONS.format(host_name=host_name))
        self._openssl("req", *_new_key(key), "-subj", subject or f"/CN={name}", "-out", str(request))
        signing = ["-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2"]
        self._openssl(
            "x509", "-req", "-in", str(request), *signing, "-extfile", str(extensions), "-out", str(certificate)
        )
        self.store(name).write_text(key.read_text() + certificate.read_text())
        return certificate, key

    def store(self, name: str) -> Path:
        """Key and certificate in one file: a PEM key store of Java's."""
        return self._directory / f"{name}-store.pem"

    def key_store(self, name: str, password: str) -> Path:
        """Key, certificate and the CA's as NAME.p12, a PKCS12 key store."""
        certificate, key, store = (self._directory / f"{name}.{kind}" for kind in ("pem", "key", "p12"))
        parts = ["-inkey", str(key), "-in", str(certificate), "-certfile", str(self.ca)]
        self._openssl("pkcs12", "-export", *parts, "-out", str(store), "-passout", f"pass:{password}")
        return store

    def trust_store(self, password: str) -> Path:
        """The CA's certificate as ca.p12, a PKCS12 trust store."""
        store = self.ca.with_suffix(".p12")
        arguments = ["-nokeys", "-in", str(self.ca), "-out", str(store), "-passout", f"pass:{password}"]
        self._openssl("pkcs12", "-export", *arguments)
        return store

    @staticmethod
    def _openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(path)]
