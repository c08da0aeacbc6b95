"""`python -m tests.kafka_clients.franz_go`: builds the client beside this file with `go`, has `headroom verify-client`
check it, and fails unless it passes every rule."""

import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from headroom.demo.processes import start, stop
from tests.kafka_clients.conftest import INTERVAL_MS, Verification, assert_passed


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headroom-franz-go-") as scratch:
        program = Path(scratch) / "client"
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=Path(__file__).parent, check=True)
        with closing(Verification(Path(scratch))) as verification:
            client = start([str(program), verification.bootstrap], stderr=subprocess.DEVNULL)
            verification.wait_until_complete()
            time.sleep(2 * INTERVAL_MS / 1000)
            stop(client)
            assert_passed(verification)
    print("franz-go passes every rule")


if __name__ == "__main__":
    main()
