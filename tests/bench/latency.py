"""p99 of a push while the storage worker ingests at half of its peak rate, and on an idle service.

To find the peak, the worker is stopped while pushes of Java producers accumulate in the spool, then continued. Then
probes push one after the other, alternately at rest and while the load pushes at half of that rate through the same
receiver. The processes of `headroom serve`, load and probe are not pinned to cores.

python -m tests.bench.latency
"""

import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator

from tests.bench.figure import tell
from tests.bench.kit.load_generator import LoadGenerator, real_payloads
from tests.bench.kit.serve import Serve, open_files_allowed
from tests.kit import wire

INTERVAL_MS = 100
RAMP_MS = 100
PILE_RATE, PILE_S = 3_000, 5.0
RECEIVED = "headroom_records_received_total"
PROBES = 40
PAYLOAD = os.urandom(500)
NO_COMPRESSION = 0
PROBED_S = 2.0  # length of a turn; short, so that other activity on the machine affects both alike
TURNS = 6
LEAD_S = 1.5  # until the worker has started


def load(port: int, rate: float) -> LoadGenerator:
    """Instances that push `rate` times a second in total until it is left."""
    instances = round(rate * INTERVAL_MS / 1000)
    return LoadGenerator(port, instances, instances, real_payloads("java-4.3.1-producer.zst"), RAMP_MS)


def peak(serve: Serve) -> float:
    """Pushes per second that the storage worker writes from a full spool."""
    with load(serve.port, PILE_RATE) as warming:  # after this every client has pushed
        warming.measure(1)
    serve.written()
    before = serve.metrics()[RECEIVED]
    serve.worker.send_signal(signal.SIGSTOP)
    try:
        with load(serve.port, PILE_RATE) as piling:
            piling.measure(PILE_S)
    finally:
        serve.worker.send_signal(signal.SIGCONT)
    begun = time.perf_counter()
    serve.written()
    return (serve.metrics()[RECEIVED] - before) / (time.perf_counter() - begun)


def latencies_ms(clients: list[tuple[socket.socket, bytes]], rounds: int) -> Iterator[float]:
    """Sequential pushes, none before its interval has elapsed."""
    due_s = [time.perf_counter() + INTERVAL_MS / 1000] * len(clients)
    for n, (client, push) in [*enumerate(clients)] * rounds:
        time.sleep(max(0.0, due_s[n] - time.perf_counter()))
        begun = time.perf_counter()
        client.sendall(push)
        assert wire.error_code(wire.read_frame(client)) == 0
        answered = time.perf_counter()
        due_s[n] = answered + 1.1 * INTERVAL_MS / 1000
        yield (answered - begun) * 1000


def main() -> None:
    open_files_allowed()
    with Serve(INTERVAL_MS) as serve:
        probes = [wire.pushing_client(serve.port, NO_COMPRESSION, PAYLOAD) for _ in range(PROBES)]
        rate = peak(serve) / 2
        rounds = int(PROBED_S * 1000 / (1.2 * INTERVAL_MS))
        idle, busy = list[float](), list[float]()
        for _ in range(TURNS):
            idle += latencies_ms(probes, rounds)
            with load(serve.port, rate):
                time.sleep(LEAD_S)
                busy += latencies_ms(probes, rounds)
            serve.written()
    p50, p99 = ([statistics.quantiles(found, n=100)[at] for found in (busy, idle)] for at in (49, 98))
    tell("push_p50_at_half_peak", p50[0], "ms", p50[0] / p50[1], "idle", digits=2)
    tell("push_p99_at_half_peak", p99[0], "ms", p99[0] / p99[1], "idle", digits=2)


if __name__ == "__main__":
    main()
