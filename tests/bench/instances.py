"""Bytes of memory per client instance in the rules.

Each instance has its own connection, and has subscribed and pushed once. The facts of a connection are shared by the
rules and the connection: figures are reported without them and with all of them. Each figure is the growth of a
separate process.

python -m tests.bench.instances
"""

import gc
import random
import subprocess
import sys
from collections.abc import Callable, Iterable

import psutil

from exporters.model import Connection
from telemetry.subscriptions.kip714_rules import ZERO_ID, ClientMetrics, PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.errors import ErrorCode
from tests.bench.figure import tell
from tests.bench.performance import INSTANCE_BYTES

COUNTS = (16_384, 100_000)
NOW_MS = 1_795_000_000_000
SUBSCRIPTIONS = {
    "all": {"metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.", "interval.ms": "60000"},
    "java": {"metrics": "*", "match": "client_software_name=apache-kafka-java,client_id=orders-.*"},
}


def caller(n: int) -> Caller:
    """Built as by the network process: separate strings per connection."""
    address, port = f"10.{n % 7}.{n % 251}.{n % 241}", 30_000 + n % 30_000
    software, version = [("apache-kafka-java", "4.3.1"), ("librdkafka", "2.16.0")][n % 2]
    connection = Connection(
        "prod", "EXTERNAL", f"User:service-{n % 500}", address, port, str(software), str(version), n % 3
    )
    return Caller(connection, f"orders-service-{n % 3000}-producer-{n % 5}", f"{address}:{port}-7f{n:010x}")


def rules(count: int) -> Callable[[], object]:
    callers = [caller(n) for n in range(count)]
    return lambda: filled(count, callers)


def rules_and_facts(count: int) -> Callable[[], object]:
    return lambda: filled(count, map(caller, range(count)))


def filled(count: int, callers: Iterable[Caller]) -> ClientMetrics:
    drawn = random.Random(1)
    known = ClientMetrics(new_id=lambda: drawn.randbytes(16), max_instances=count)
    known.replace_all(SUBSCRIPTIONS, NOW_MS)
    for n, who in enumerate(callers):
        now_ms = NOW_MS + n // 10
        code, instance = known.get(ZERO_ID, who, now_ms)
        assert code is ErrorCode.NONE
        push = PushRequest(instance.client_instance_id, instance.subscription_id, False, 4, who)
        assert known.push(push, now_ms, too_large=False)[0] is ErrorCode.NONE
    assert len(known.instances) == count
    return known


KINDS = {"instance": rules, "instance_and_connection_facts": rules_and_facts}


def grown(fill: Callable[[], object]) -> int:
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    kept = fill()
    gc.collect()
    after = process.memory_info().rss
    del kept
    return int(after - before)


def main() -> None:
    for name in KINDS:
        for count in COUNTS:
            command = [sys.executable, "-m", "tests.bench.instances", name, str(count)]
            nbytes = float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) / count
            tell(f"{name}_{count}", nbytes, "bytes", nbytes / INSTANCE_BYTES, "1_KiB", digits=0)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(grown(KINDS[sys.argv[1]](int(sys.argv[2]))))
    else:
        main()
