"""The class data archive of a broker's JVM (JEP 350): classes that one JVM has loaded are mapped by the next ones.

With it a broker starts with half of the CPU time. The tests write it once, beside the jars; the demo uses one that is
there. A JVM ignores an archive of other jars or of another Java.
"""

from __future__ import annotations

import os
from pathlib import Path

from headroom.demo.broker import LocalCluster, archive
from headroom.demo.processes import exclusive

_GRACE_S = 300.0  # a JVM writes the archive when it ends


def write_archive(java: str, libs: Path) -> None:
    """Writes the archive of these jars unless it is there. Raises DemoError, OSError.

    Of two processes that need it at once, the second waits.
    """
    with exclusive(libs.parent):
        if archive(libs).exists():
            return
        unfinished = archive(libs).with_suffix(f".{os.getpid()}")
        with LocalCluster(java, libs, jvm_options=[f"-XX:ArchiveClassesAtExit={unfinished}"]) as cluster:
            cluster.brokers[0].stop(_GRACE_S)
        unfinished.rename(archive(libs))  # in one step: others may be starting
