"""The base of parts that are started and always stopped again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """A context manager. One that fails to start is stopped as well: parts of it may run."""

    @abstractmethod
    def start(self) -> None:
        """Returns when it can be used. Raises DemoError."""

    @abstractmethod
    def stop(self) -> None:
        """Stops whatever was started; leaves nothing behind."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
