"""`python -m tests.bench.kit.load PORT CLIENTS`: clients that push payloads of a Java producer at given rates.

Prints "ready" when all are subscribed. For each line `RATE SECONDS` on standard input it pushes, and prints how many
pushes were acknowledged, how many were refused, and the largest send delay in ms.
"""

from __future__ import annotations

import itertools
import select
import sys
import time
from collections import Counter

from tests.bench.kit.fleet import ZSTD, fleet
from tests.kit import wire

VECTOR = "java-4.3.1-producer.zst"
TURNS = 4  # payloads of a client, sent in a cycle


class Fleet:
    """All clients, each with its pushes."""

    def __init__(self, port: int, clients: int) -> None:
        self._poll = select.epoll()
        self._clients = []
        self._by_descriptor = {}
        for n, client in enumerate(fleet(VECTOR, clients)):
            connection = wire.connect(port)
            connection.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", f"app-{n}".encode()))
            ids = wire.subscribed(wire.read_frame(connection))
            pushes = itertools.cycle([wire.push(*ids, ZSTD, client.payload(turn)) for turn in range(TURNS)])
            self._clients.append((connection, pushes))
            self._by_descriptor[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def push(self, rate: float, seconds: float) -> str:
        """Pushes at a total rate of all clients."""
        answers: Counter[int] = Counter()
        begun, count, late_s = time.perf_counter(), int(rate * seconds), 0.0
        for n, (connection, pushes) in zip(range(count), itertools.cycle(self._clients)):
            while (early_s := begun + n / rate - time.perf_counter()) > 0:
                self._take(answers, early_s)
            late_s = max(late_s, -early_s)
            connection.sendall(next(pushes))
            if n % 16 == 0:
                self._take(answers, 0)
        while answers.total() < count:
            self._take(answers, 10)
        return f"{answers[0]} {count - answers[0]} {late_s * 1000:.0f}"

    def _take(self, answers: Counter[int], timeout_s: float) -> None:
        for descriptor, _ in self._poll.poll(timeout_s):
            answer = self._by_descriptor[descriptor].recv(4096)
            for at in range(0, len(answer), wire.ANSWER_BYTES):
                answers[wire.error_code(answer[at : at + wire.ANSWER_BYTES])] += 1


def main() -> None:
    clients = Fleet(int(sys.argv[1]), int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(clients.push(*map(float, line.split())), flush=True)


if __name__ == "__main__":
    main()
