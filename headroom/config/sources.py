"""Loads settings: flags override HEADROOM_* variables, which override a YAML file, which overrides defaults.

All errors, including unknown HEADROOM_* variables, are collected and reported at once, before anything is opened.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from exporters.printable import one_line
from headroom.config.settings import ConfigError, ServeConfig
from quota_metrics.config.quota_file import UniqueKeys

_PREFIX = "HEADROOM_"
_OF_OTHER_COMMANDS = ("url", "kafka_libs", "pure", "http_address", "build")
# Variables that Kubernetes sets in each pod for a Service named headroom or headroom-*.
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$")
_OF_PYDANTIC = re.compile(r"[\[(]")  # parts of a location that name a validator instead of a setting


class Environment(EnvSettingsSource):
    """The HEADROOM_* variables. Validation reports text that should be JSON, together with all other errors."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def load(file: Path | None, flags: dict[str, Any]) -> ServeConfig:
    """Merges all sources. Raises ConfigError with all errors."""
    faults = []  # pydantic reports unknown names within a section
    for variable in sorted(os.environ):
        if variable.upper().startswith(_PREFIX) and not _OF_KUBERNETES.search(variable):
            setting, *within = variable.lower().removeprefix(_PREFIX.lower()).split("__")
            field = ServeConfig.model_fields.get(setting)
            is_section = field is not None and hasattr(field.annotation, "model_fields")
            if not (is_section if within else field is not None or setting in _OF_OTHER_COMMANDS):
                faults.append(f"{variable}: unknown setting")
    try:
        settings: dict[str, Any] | None = _from_file(file) if file else {}
    except ConfigError as exc:
        faults, settings = [*exc.faults, *faults], None
    variables = Environment(ServeConfig, env_prefix=_PREFIX, env_nested_delimiter="__")  # type: ignore[arg-type] # any
    merged = _merged(settings or {}, variables(), {key: flag for key, flag in flags.items() if flag is not None})
    config: ServeConfig | None = None
    wrong: set[str] = set()
    try:
        config = ServeConfig.model_validate(merged)
    except ValidationError as exc:
        errors = exc.errors()
        if settings is None:  # the file cannot be read, and a section may lack what it says
            errors = [error for error in errors if isinstance(merged.get(str(next(iter(error["loc"]), ""))), str)]
        faults += dict.fromkeys(_fault(error["loc"], error["msg"]) for error in errors)
        wrong = {str(error["loc"][0]) for error in errors if error["loc"]}
        with suppress(ValidationError):
            config = ServeConfig.model_validate({name: merged[name] for name in merged if name not in wrong})
    if faults or config is None:
        raise ConfigError(faults, None if settings is None else config, frozenset(wrong))
    return config


def _merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """The settings of all layers, of which a later one overrides the earlier."""
    merged: dict[str, Any] = {}
    for name, value in (item for layer in layers for item in layer.items()):
        before = merged.get(name)
        merged[name] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text("utf-8"), UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as exc:
        raise ConfigError([f"{file}: {exc.strerror}"]) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # ValueError: not UTF-8, or a date that does not exist
        raise ConfigError([f"{file}: not YAML: {one_line(exc)}"]) from exc
    if not isinstance(content, dict | None):
        raise ConfigError([f"{file}: not a mapping of settings"])
    return {str(key): value for key, value in (content or {}).items()}


def _fault(location: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in location if not (isinstance(part, str) and _OF_PYDANTIC.search(part)))
    text = message.removeprefix("Value error, ").replace("Extra inputs are not permitted", "unknown setting")
    text = text.replace("Input should be a valid tuple", "not a list")
    text = re.sub(r"Input should be a valid dictionary( or instance of \w+Config)?$", "not a mapping of settings", text)
    return f"{name}: {text}" if name else text
