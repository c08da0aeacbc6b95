"""What the oracles share: drawn cases against Kafka's classes in a JVM, and how differences are printed."""

import random
from collections.abc import Callable, Mapping, Sequence

from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.jvm import Jvm

Finding = list[str]  # what differs
Subject = Callable[[Jvm, int, int], Finding]  # of a seed and a number of cases


def of_cases(case: Callable[[Jvm, random.Random], Finding]) -> Subject:
    """A subject of cases that are drawn one by one."""

    def run(jvm: Jvm, seed: int, cases: int) -> Finding:
        return [
            f"case {number}: {what}"
            for number in range(cases)
            for what in case(jvm, random.Random(f"{case.__name__}/{seed}/{number}"))
        ]

    return run


def run_subjects(subjects: Mapping[str, Subject], seed: int, cases: int) -> int:
    """Runs each subject, all in one JVM, and prints what differs; the number of differences."""
    java = find_java()
    with Jvm(java, kafka_libs(java)) as jvm:
        return sum(print_differences(name, cases, run(jvm, seed, cases)) for name, run in subjects.items())


def print_differences(subject: str, cases: int, differences: Sequence[str]) -> int:
    """The first ones and a closing line; the number of differences."""
    for difference in differences[:20]:
        print(difference)
    print(f"oracle {subject} cases={cases} differences={len(differences)}")
    return len(differences)
