"""The settings as data for `headroom config reference` and docs/settings.md, read from the fields of their models."""

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from headroom.config.settings import ServeConfig
from headroom.config.types import Address

_KINDS: dict[Any, str] = {
    Path: "path",
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    Address: "HOST:PORT",
    SecretStr: "secret",
}


class Setting(NamedTuple):
    """One setting; `name` has dots, as in a YAML path."""

    name: str
    kind: str
    default: str
    description: str

    @property
    def variable(self) -> str:
        """Its variable of the environment."""
        return "HEADROOM_" + self.name.upper().replace(".", "__")


def settings() -> list[Setting]:
    """All settings of `headroom serve`, sections expanded, in the order of their classes."""
    return list(_settings_of(ServeConfig(), ""))


def as_markdown() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Written by `make docs` from the settings classes; `headroom config reference` prints the same. A flag of",
        "`headroom serve` overrides the environment variable, which overrides the YAML file of `--config`.",
        "",
        "| setting | default | kind | description |",
        "|---|---|---|---|",
    ]
    # Those of one meaning are one row, as those that the gRPC and OTLP receivers share.
    rows: dict[tuple[str, ...], list[Setting]] = {}
    for setting in settings():
        key = (setting.name.rpartition(".")[2], setting.kind, setting.default, setting.description)
        rows.setdefault(key, []).append(setting)
    for row in rows.values():
        names, setting = [setting.name for setting in row], row[0]
        cells = (", ".join(f"`{name}`" for name in names), f"`{setting.default}`", setting.kind, setting.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "The variable of `spool.max_bytes` is `HEADROOM_SPOOL__MAX_BYTES`, and so on for all.", ""]
    return "\n".join(lines)


def _settings_of(section: BaseModel, prefix: str) -> Iterator[Setting]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) and type(value).__name__.endswith("Config"):
            yield from _settings_of(value, f"{prefix}{name}.")
        else:
            description = " ".join((field.description or "").split())  # its lines are those of the source
            yield Setting(prefix + name, _kind(field.annotation), _default(field, value), description)


def _kind(annotation: Any) -> str:
    """Describes a type annotation for authors of YAML."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (UnionType, Union):
        return " or ".join(dict.fromkeys(_kind(argument) for argument in arguments if argument is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return " or ".join(f"`{argument.value}`" for argument in annotation)
    return _KINDS.get(annotation, "mapping" if origin is dict else getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo, value: Any) -> str:
    if field.default_factory is not None and value != {}:
        return "computed"
    if isinstance(value, SecretStr):
        return "secret"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | dict):
        return "[]" if value == () else "{}" if value == {} else str(value)
    return str(value) if str(value) else '""'
