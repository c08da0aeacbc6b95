"""SIGHUP and `headroom config reload`: what is taken over, what is named, and that nothing ends."""

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.config import app
from headroom.demo.broker import LocalCluster
from tests.kit.serving import Served, config_file, eventually


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
    owners = tmp_path / "owners.yaml"
    owners.write_text("owners: [{team: payments, user: alice}]")
    config = config_file(tmp_path, log_level="info", owners=str(owners))
    with Served(tmp_path, "--upstream", kafka.bootstrap, *config) as served:

        def reload() -> tuple[int, str]:
            result = CliRunner().invoke(app, ["reload", "--data", str(tmp_path / "data")])
            return result.exit_code, result.output

        quotas, gateway, levels = {"window_num": 31}, {"drain_ms": 1}, {"watch": 0.7}
        config_file(tmp_path, log_level="debug", owners=str(owners), quotas=quotas, gateway=gateway, levels=levels)
        owners.write_text("owners: [{team: payments}]")
        code, said = reload()
        assert (code, "payments has no pattern of user" in said, "reloaded:" in said) == (1, True, False)
        owners.write_text("owners: [{team: billing, user: alice}]")
        code, said = reload()
        assert code == 0
        reloaded = ("subscriptions", "owners", "quotas.window_num", "log_level", "levels.watch")
        expected = {*(f"reloaded: {name}" for name in reloaded), "needs a restart: gateway.drain_ms"}
        assert set(said.splitlines()) == expected
        assert "say 31 x 1000 ms, but broker 1 has 11 x 1000 ms" in eventually(served.log.read_text, bool)
        config_file(tmp_path, unheard=1)
        code, said = reload()
        assert (code, "unheard: unknown setting" in said) == (1, True)
        for child in (*served.children("storage_process"), *served.children("network_process")):
            os.kill(child.pid, signal.SIGHUP)
        served.process.send_signal(signal.SIGHUP)
        eventually(lambda: served.log.read_text().count("unknown setting"), lambda count: count >= 2)
        assert served.ready()[0] == 200
        assert all(child.is_running() for child in served.children("storage_process"))
        assert served.stop() == 0
