"""Produces records and reads them back with librdkafka; prints how many it read.

python librdkafka.py BOOTSTRAP TOPIC GROUP RECORDS
"""

import sys
import time

from confluent_kafka import Consumer, Producer

PATIENCE_S = 60.0


def main(bootstrap: str, topic: str, group: str, records: int) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": f"{group}-producer"})
    for number in range(records):
        producer.produce(topic, f"{group}-{number}".encode() + bytes(180))
    producer.flush(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    prefix, read, deadline = f"{group}-".encode(), 0, time.monotonic() + PATIENCE_S
    while read < records and time.monotonic() < deadline:
        values = [message.value() or b"" for message in consumer.consume(500, 0.5) if not message.error()]
        read += sum(value.startswith(prefix) for value in values)
    consumer.close()
    print(read)
    return 0 if read == records else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
