"""Settings of further listeners."""

from __future__ import annotations

from pathlib import Path

import pytest

from headroom.config.settings import ConfigError
from headroom.config.sources import load


def test_further_listener_needs_its_own_port_and_certificate(tmp_path: Path) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text("listeners: [{listen: '127.0.0.1:0'}, {listen: 'a:1', security_protocol: SSL}]\n")
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    assert "a port of its own" in str(refused.value)
    assert "needs tls_certificate" in str(refused.value)
