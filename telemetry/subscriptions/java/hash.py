"""Java's hash codes and iteration orders, as far as subscription ids depend on them. Sans-I/O.

A subscription id is computed from the text of a java.util.HashSet and so depends on its iteration order. With another
order, a client that moves between a broker and the gateway needs an extra round trip (UNKNOWN_SUBSCRIPTION_ID).
Source: java.util.HashMap and java.util.concurrent.ConcurrentHashMap of JDK 17, and
ClientMetricsManager.computeSubscriptionId.

Not reproduced, so that ids differ from a broker's: buckets of more than 8 elements in tables of 64 or more become
red-black trees, which takes names made to collide; and from JDK 19 on a HashSet that is made of just 12, 24, 48 ...
elements begins with half the table.
"""

import base64
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

_DEFAULT_CAPACITY = 16
_TREEIFY_THRESHOLD = 8
_MIN_TREEIFY_CAPACITY = 64


def uuid_hash(uuid: bytes) -> int:
    """java.util.UUID.hashCode() of 16 big-endian bytes, unsigned; Kafka's Uuid has the same."""
    halves = int.from_bytes(uuid[:8], "big") ^ int.from_bytes(uuid[8:], "big")
    return halves >> 32 ^ halves & 0xFFFF_FFFF


def uuid_text(uuid: bytes) -> str:
    """Kafka's Uuid.toString(): base64url of the 16 bytes, not padded."""
    return base64.urlsafe_b64encode(uuid)[:-2].decode("ascii")


def hash_set(elements: Iterable[str]) -> list[str]:
    """The iteration order of a HashSet to which `elements` were added one after the other."""
    return _filled(_DEFAULT_CAPACITY, elements)


def hash_set_of(elements: Collection[str]) -> list[str]:
    """The iteration order of new HashSet<>(elements), which is sized for them at once."""
    return _filled(_power_of_two(max(len(elements) * 4 // 3 + 1, _DEFAULT_CAPACITY)), elements)


class ConcurrentMapKeys:
    """The keys of a ConcurrentHashMap in iteration order. Its table grows and never shrinks."""

    def __init__(self) -> None:
        self._buckets: list[list[str]] = [[] for _ in range(_DEFAULT_CAPACITY)]
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets:
            yield from bucket

    def put(self, key: str) -> None:
        bucket = self._bucket(key)
        if key in bucket:
            return
        bucket.append(key)
        self._size += 1
        if len(bucket) > _TREEIFY_THRESHOLD and len(self._buckets) < _MIN_TREEIFY_CAPACITY:
            self._grow_to(_power_of_two(3 * len(self._buckets) + 1))  # tryPresize(2 * capacity)
        self._grow_to(self._size + 1)

    def remove(self, key: str) -> None:
        """Removes the key. Raises ValueError if it is absent."""
        self._bucket(key).remove(key)
        self._size -= 1

    def _bucket(self, key: str) -> list[str]:
        return self._buckets[_spread(key) & (len(self._buckets) - 1)]

    def _grow_to(self, size: int) -> None:
        while len(self._buckets) * 3 // 4 < size:
            halves = [_transferred(bucket, len(self._buckets)) for bucket in self._buckets]
            self._buckets = [low for low, _ in halves] + [high for _, high in halves]


def _transferred(bucket: list[str], bit: int) -> tuple[list[str], list[str]]:
    """ConcurrentHashMap.transfer of one bucket: keeps the last run of one half, prepends the elements before it."""
    bits = [_spread(key) & bit for key in bucket]
    run = len(bucket)
    while run and bits[run - 1] == bits[-1]:
        run -= 1
    halves: tuple[list[str], list[str]] = ([], [])
    if bucket:
        halves[bits[-1] != 0].extend(bucket[run:])
    for key, half in zip(bucket[:run], bits, strict=False):
        halves[half != 0].insert(0, key)
    return halves


def _filled(capacity: int, elements: Iterable[str]) -> list[str]:
    """In the order of their buckets, and within one in that of insertion, which HashMap.resize keeps."""
    distinct: list[str] = []
    in_bucket: Counter[int] = Counter()
    for element in dict.fromkeys(elements):
        distinct.append(element)
        bucket = _spread(element) & (capacity - 1)
        in_bucket[bucket] += 1
        is_crowded = in_bucket[bucket] > _TREEIFY_THRESHOLD and capacity < _MIN_TREEIFY_CAPACITY
        doublings = is_crowded + (len(distinct) > (capacity << is_crowded) * 3 // 4)
        if doublings:
            capacity <<= doublings
            in_bucket = Counter(_spread(element) & (capacity - 1) for element in distinct)
    return sorted(distinct, key=lambda element: _spread(element) & (capacity - 1))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@functools.lru_cache(maxsize=4096)
def _spread(key: str) -> int:
    """HashMap.hash: of String.hashCode() as an unsigned number of 32 bits."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value ^ value >> 16
