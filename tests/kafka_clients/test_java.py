"""The demo's Admin on a real broker."""

import pytest

from headroom.demo.jvm import Admin
from headroom.demo.processes import DemoError

pytestmark = [pytest.mark.kafka, pytest.mark.java]


def test_refusal_of_kafka_is_a_one_line_error(kafka_admin: Admin) -> None:
    with pytest.raises(
        DemoError, match=r"cannot change the cluster's configuration: .*InvalidRequestException"
    ) as caught:
        kafka_admin.alter_quota({"client-id": "some-app"}, {"no_such_key": 1.0})
    assert "\n" not in str(caught.value)
