"""Types of settings: addresses, sizes, times, sections."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import NoDecode

from exporters.clickhouse.connection import read_secret
from quota_metrics.kafka.bootstrap_servers import parse_bootstrap_server, split_servers
from telemetry.gateway.networks import networks_of

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>\d{1,5})")


class Address(BaseModel):
    """HOST:PORT; an IPv6 host in brackets."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: int = Field(ge=0, le=65_535)
    protocol: str = ""  # of a broker's address, where it names one

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: object) -> object:
    """Text to the fields of an Address. Raises ValueError."""
    if isinstance(value, Address | dict):
        return value
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{value!r} is not HOST:PORT")
    return {"host": match["v6"] or match["host"], "port": int(match["port"])}


def _split_brokers(value: object) -> object:
    """The parts of a text with commas, or of a list of such texts."""
    if isinstance(value, list | tuple):
        return [part for text in value for part in (split_servers(text) if isinstance(text, str) else [text])]
    return split_servers(value) if isinstance(value, str) else value


def _parse_broker(value: object) -> object:
    """Raises ValueError."""
    return value if isinstance(value, Address | dict) else parse_bootstrap_server(str(value))._asdict()


def parse_http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return value
    except ValueError:
        pass
    raise ValueError("is not http(s)://[user:password@]host[:port][/path]")


def _parse_directory(value: object) -> object:
    if value == "":  # an empty variable of a script; Path("") is the working directory
        raise ValueError("'' names no directory")
    return value


Directory = Annotated[Path, BeforeValidator(_parse_directory)]
ListenAddress = Annotated[Address, BeforeValidator(parse_address), NoDecode]
_Broker = Annotated[Address, BeforeValidator(_parse_broker)]
Brokers = Annotated[tuple[_Broker, ...], BeforeValidator(_split_brokers), NoDecode]
OptionalListenAddress = Annotated[
    Address | None, BeforeValidator(lambda value: None if value is None else parse_address(value)), NoDecode
]
Bytes = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Millis = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(gt=0, le=65_535)]


class Section(BaseModel):
    """A section of settings; unknown names are errors. The text below a setting is its description in the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def secret_of(value: SecretStr | None, file: Path | None) -> str:
    """Raises OSError when the file cannot be read."""
    return read_secret(file) if file else value.get_secret_value() if value else ""


def check_secret(name: str, value: SecretStr | None, file: Path | None) -> None:
    """Raises ValueError when both are given, or the file cannot be read."""
    if value and file:
        raise ValueError(f"set either {name} or {name}_file, not both")
    try:
        secret_of(value, file)
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"cannot read {name}_file: {exc}") from exc


def _network(value: str) -> str:
    networks_of([value])
    return value


Network = Annotated[str, AfterValidator(_network)]
