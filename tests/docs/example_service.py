"""A service with a broker and ten minutes of recorded clients: what the commands of docs/ are about."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from tests.headroom.web.five_hours import CLUSTER, DEMANDS, store_of, write_usage
from tests.kit import wire
from tests.kit.serving import Served, eventually, rows

AHEAD_S, BEHIND_S = 1_800, 900  # of usage after and before now


class Example:
    """A context manager: `broker`, `served`, `environment` of the commands, and `fill` for what they are about."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-example-")))
            java = find_java()
            broker = stack.enter_context(LocalCluster(java, kafka_libs(java)))
            self.broker = broker.bootstrap
            self.served = stack.enter_context(Served(self.directory, "--upstream", self.broker, "--cluster", CLUSTER))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which commands find this service instead of one at the default addresses."""
        found = {"HEADROOM_URL": f"http://{self.served.sql}", "HEADROOM_HTTP_ADDRESS": self.served.http}
        found["HEADROOM_DATA"] = str(self.directory / "data")
        return os.environ | found | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, *command: str) -> None:
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def fill(self) -> None:
        """Quotas, usage, a subscription, a push that cannot be decoded. Returns when a minute has its levels."""
        for client in DEMANDS:
            if client.limit is not None:
                who = ["--user", client.user, *([] if client.shared else ["--client-id", client.client_id])]
                limit = ["--add", f"{client.key}={client.limit:.0f}"]
                self.run(*_HEADROOM, "quotas", "alter", "--bootstrap-server", self.broker, *who, *limit)
            write_usage(store_of(self.served, self.directory / "data"), client, BEHIND_S, AHEAD_S)
        every = ["--name", "all", "--metrics", "org.apache.kafka.", "--interval", "60000"]
        self.run(*_HEADROOM, "subscriptions", "alter", "--bootstrap-server", self.broker, *every)
        self._push_garbage()
        eventually(
            lambda: len(rows(self.served.sql, "SELECT 1 FROM headroom.headroom_now")), lambda n: n >= len(DEMANDS)
        )

    def _push_garbage(self) -> None:
        """A push whose payload is no protobuf: it ends in quarantine."""

        def pushed() -> int:
            client = wire.connect(self.served.address[1])
            client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", b"orders-api"))
            client.sendall(wire.push(*wire.subscribed(wire.read_frame(client)), 0, b"\xff\xff\xff"))
            code = wire.error_code(wire.read_frame(client))
            client.close()
            return code

        eventually(pushed, lambda code: code == 0)
        eventually(lambda: self.quarantined, lambda found: found != "")

    @property
    def quarantined(self) -> str:
        """The beginning of the id of a push in quarantine."""
        listed = subprocess.run(
            [*_HEADROOM, "quarantine", "list", "--output", "json"],
            env=self.environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(listed.stdout or b"[]")
        return str(found[0]["id"]) if found else ""


_HEADROOM = (sys.executable, "-m", "headroom")
