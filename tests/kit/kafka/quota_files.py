"""The quotas that a file declares, for tests of what writes such files."""

from quota_metrics.config.quota_file import DeclaredQuota, parse_declared_file


def quotas_of(content: str | bytes) -> list[DeclaredQuota]:
    file = parse_declared_file(content)
    assert file.errors == []
    return file.quotas or []
