"""Loads settings: flags override HEADROOM_* variables, which override a YAML file, which overrides defaults.

All errors, including unknown HEADROOM_* variables, are collected and reported at once, before anything is opened.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

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
    unknown = []  # pydantic reports unknown names within a section
    for variable in sorted(os.environ):
        if variable.upper().startswith(_PREFIX) and not _OF_KUBERNETES.search(variable):
            setting, *within = variable.lower().removeprefix(_PREFIX.lower()).split("__")
            field = ServeConfig.model_fields.get(setting)
            is_section = field is not None and hasattr(field.annotation, "model_fields")
            if not (is_section if within else field is not None or setting in _OF_OTHER_COMMANDS):
                unknown.append(f"{variable}: unknown setting")
    settings = _from_file(file) if file else {}

    class Layered(ServeConfig, BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=_PREFIX, env_nested_delimiter="__", nested_model_default_partial_update=True
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, Environment(settings_cls), InitSettingsSource(settings_cls, settings)

    try:
        config = Layered(**{key: value for key, value in flags.items() if value is not None})
    except ValidationError as exc:
        faults = dict.fromkeys(_fault(error["loc"], error["msg"]) for error in exc.errors())
        raise ConfigError([*unknown, *faults]) from exc
    if unknown:
        raise ConfigError(unknown)
    return config


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text("utf-8"), UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as exc:
        raise ConfigError([f"{file}: {exc.strerror}"]) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # ValueError: not UTF-8, or a date that does not exist
        raise ConfigError([f"{file}: not YAML: {one_line(exc)}"]) from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError([f"{file}: not a mapping of settings"])
    return {str(key): value for key, value in content.items()}


def _fault(location: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in location if not (isinstance(part, str) and _OF_PYDANTIC.search(part)))
    text = message.removeprefix("Value error, ").replace("Extra inputs are not permitted", "unknown setting")
    text = text.replace("Input should be a valid tuple", "not a list")
    text = re.sub(r"Input should be a valid dictionary( or instance of \w+Config)?$", "not a mapping of settings", text)
    return f"{name}: {text}" if name else text
