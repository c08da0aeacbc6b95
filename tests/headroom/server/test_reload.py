"""SIGHUP and `headroom config reload`: what is taken over, what is named, and that nothing ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.config import app
from headroom.demo.broker import LocalCluster
from tests.kit.serving import Served, eventually


def test_reload_needs_a_running_headroom(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reload", "--data", str(tmp_path / "none")])
    assert (result.exit_code, "No such file" in result.output) == (1, True)
    for content in ("", "0", "12345"):
        (tmp_path / "lock").write_text(content)
        result = CliRunner().invoke(app, ["reload", "--data", str(tmp_path)])
        assert (result.exit_code, "no headroom serves" in result.output) == (1, True)


@pytest.mark.kafka
@pytest.mark.clickhouse
def test_settings_are_reloaded_without_an_end(tmp_path: Path, kafka: LocalCluster) -> None:
    file = tmp_path / "headroom.yaml"
    owners = tmp_path / "owners.yaml"
    owners.write_text("owners: [{team: payments, user: alice}]")
    file.write_text(f"log_level: info\nowners: {owners}\n")
    with Served(tmp_path, "--upstream", kafka.bootstrap, "--config", str(file)) as served:

        def reload() -> tuple[int, str]:
            result = CliRunner().invoke(app, ["reload", "--data", str(tmp_path / "data")])
            return result.exit_code, result.output

        reloaded = f"log_level: debug\nquotas: {{window_num: 31}}\ngateway: {{drain_ms: 1}}\nowners: {owners}\n"
        reloaded += "levels: {watch: 0.7}\n"
        file.write_text(reloaded)
        owners.write_text("owners: [{team: payments}]")
        code, said = reload()
        assert (code, "payments has no pattern of user" in said, "reloaded:" in said) == (1, True, False)
        owners.write_text("owners: [{team: billing, user: alice}]")
        code, said = reload()
        assert code == 0
        assert "reloaded: owners" in said
        assert "reloaded: subscriptions\nreloaded: " in said
        assert "reloaded: quotas.window_num" in said
        assert "reloaded: log_level" in said
        assert "reloaded: levels.watch" in said
        assert "needs a restart: gateway.drain_ms" in said
        assert "say 31 x 1000 ms, but broker 1 has 11 x 1000 ms" in eventually(served.log.read_text, bool)
        file.write_text("unheard: 1\n")
        code, said = reload()
        assert (code, "unheard: unknown setting" in said) == (1, True)
        for child in (*served.children("storage_process"), *served.children("network_process")):
            os.kill(child.pid, signal.SIGHUP)
        served.process.send_signal(signal.SIGHUP)
        eventually(lambda: served.log.read_text().count("unknown setting"), lambda count: count >= 2)
        assert served.ready()[0] == 200
        assert all(child.is_running() for child in served.children("storage_process"))
        assert served.stop() == 0
