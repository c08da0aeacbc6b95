"""A part of the demo that is started and stopped, and the errors that end the demo with a one-line message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class DemoError(Exception):
    """A part of the demo failed, or Java or the Kafka jars are missing; the message is one line."""


class Service(ABC):
    """A context manager. It is stopped even when it fails to start, because parts of it may be running."""

    @abstractmethod
    def start(self) -> None:
        """Returns when the service is usable. Raises DemoError."""

    @abstractmethod
    def stop(self) -> None:
        """Stops everything that was started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # cleans up and re-raises
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
