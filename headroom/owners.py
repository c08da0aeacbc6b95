"""The owners of users, client ids and topics: the file of the setting `owners`."""

from pathlib import Path

from headroom.errors import ServeError
from quota_metrics.config.owners import NO_OWNERS, Owners, OwnersError, parse_owners


def owners_of(file: Path | None) -> Owners:
    """The owners of a file; none without a file. Raises ServeError."""
    if file is None:
        return NO_OWNERS
    try:
        return parse_owners(file.read_bytes())
    except OSError as exc:
        raise ServeError(f"owners: cannot read {file}: {exc.strerror}") from exc
    except OwnersError as exc:
        raise ServeError(f"owners: {file}: {exc}") from exc
