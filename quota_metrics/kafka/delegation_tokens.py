"""Owners of delegation tokens (KIP-48)."""

from __future__ import annotations

from kio.schema.describe_delegation_token import v1, v2, v3

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import check


async def token_owners(admin: KafkaAdmin) -> dict[str, str]:
    """Token id -> name of the owner, of the tokens that the admin's user may see: its own, those that it may renew, and
    with Describe on a token or DescribeTokens on its owner all others.

    The tokens' HMACs, which are passwords, are in the response and are dropped with it. Raises ClusterError.
    """
    versions = (v3, v2, v1)
    response = await admin.send(*(version.DescribeDelegationTokenRequest(owners=None) for version in versions))
    check("DescribeDelegationToken", response.error_code, None)
    return {token.token_id: token.principal_name for token in response.tokens}
