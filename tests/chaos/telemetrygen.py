"""`python -m tests.chaos.telemetrygen [METRICS]`: OpenTelemetry's telemetrygen sends to the OTLP receivers.

By gRPC and HTTP, gauges, sums and histograms, METRICS of each; with the token, and once with a wrong one. What
telemetrygen sent must be in ClickHouse, and nothing else. The first use builds the program with `go install` into
.cache (about 60 CPU seconds). Needs Go.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.otlp_receivers import TOKEN
from tests.kit.serving import Served, eventually, rows

MODULE = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen"
VERSION = "v0.161.0"
PROGRAM = Path(".cache") / f"telemetrygen-{VERSION}"
TYPES = ("Gauge", "Sum", "Histogram")
_BUILD_TIMEOUT_S = 1_800.0
_SEND_TIMEOUT_S = 300.0
_STORED = """
SELECT client_id, toFloat64(count()) AS points FROM
(
    SELECT client_id FROM headroom.client_metrics WHERE metric LIKE 'gen.%'
    UNION ALL
    SELECT client_id FROM headroom.client_histograms WHERE metric LIKE 'gen.%'
)
GROUP BY client_id ORDER BY client_id
"""


def main(metrics: int) -> int:
    """Prints a line for each client. Raises AssertionError when the store does not get exactly what was sent."""
    built()
    os.environ |= {"HEADROOM_OTLP__TOKEN": TOKEN, "HEADROOM_OTLP__ALLOW_UNAUTHENTICATED": "false"}
    free = "127.0.0.1:0"
    with (
        tempfile.TemporaryDirectory() as directory,
        Served(Path(directory), "--otlp-grpc", free, "--otlp-http", free) as served,
    ):
        expected = {}
        for protocol in ("grpc", "http"):
            address = served.addresses[f"otlp-{protocol}"]
            for kind in TYPES:
                client_id = f"{protocol}-{kind}"
                done = send(address, protocol, kind, client_id, metrics, TOKEN)
                assert done.returncode == 0, done.stderr[-2000:]
                expected[client_id] = float(metrics)
            refused = send(address, protocol, "Gauge", f"{protocol}-stranger", metrics, "not-the-token-of-anybody")
            assert refused.returncode != 0, "accepted without the token"
        found = dict(eventually(lambda: rows(served.sql, _STORED), lambda stored: dict(stored) == expected))
    for client_id, sent in expected.items():
        print(f"telemetrygen {VERSION} {client_id} sent={sent:.0f} stored={found.get(client_id, 0):.0f}")
    print("telemetrygen with a wrong token: refused by gRPC and by HTTP, nothing stored")
    return 0


def send(
    address: str, protocol: str, kind: str, client_id: str, metrics: int, token: str
) -> subprocess.CompletedProcess[str]:
    """Runs telemetrygen until it has sent all, or was refused."""
    command = [
        str(PROGRAM), "metrics", "--otlp-insecure", "--otlp-endpoint", address, "--metrics", str(metrics),
        "--rate", "0",
        "--metric-type", kind, "--otlp-metric-name", f"gen.{kind.lower()}",
        "--otlp-header", f'authorization="Bearer {token}"',
        "--otlp-attributes", f'client_id="{client_id}"', "--otlp-attributes", 'principal="alice"',
        *(["--otlp-http"] if protocol == "http" else []),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SEND_TIMEOUT_S)


def built() -> None:
    """Builds PROGRAM if it is not there."""
    if not PROGRAM.exists():
        directory = PROGRAM.parent.absolute()
        directory.mkdir(exist_ok=True)
        environment = os.environ | {"GOBIN": str(directory), "CGO_ENABLED": "0"}
        subprocess.run(["go", "install", f"{MODULE}@{VERSION}"], env=environment, check=True, timeout=_BUILD_TIMEOUT_S)
        (directory / "telemetrygen").rename(PROGRAM)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
