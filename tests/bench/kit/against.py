"""Figures of this tree beside those of an older commit, alternated in one run: has something become slower since?

`make bench-against COMMIT=c1e7744 ROUNDS=3`, or for some of the figures
`python -m tests.bench.kit.against COMMIT ROUNDS NAME ...`. The commit is extracted to a temporary directory and runs
its own benches with the dependencies of this tree. Each tree runs interpreted and, this one after `make compiled`,
compiled, as wheel and image are. Each figure is the median of the rounds; `ratio` is to that of the commit in the same
build, and the lowest and the highest value show the noise. Rows per CPU-second are not among them: commits before the
managed ClickHouse server need another chDB than this tree's.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.bench.figure import tell
from tests.bench.kit.serve import builds

TIMEOUT_S = 300
_PUSHES = "import os; from tests.bench.acknowledge import measured; print(measured('headroom', os.urandom({})))"
# The proxy runs in the build that the variables of the tree choose, as the probe itself does.
_FRAMES = """
import statistics
from tests.bench import frames
frames.builds = lambda: {{"as asked": {{}}}}
[shape] = [shape for shape in frames.SHAPES if shape.name == "{}"]
load = frames.Generator(False)
with frames.python_proxy("headroom", load, []) as proxy:
    load.open(proxy.port, shape)
    load.run(frames.WARM_S)
    print(statistics.median(proxy.frames_per_cpu_s() for _ in range(frames.ROUNDS)))
load.stop()
"""
_BYTES = "from tests.bench.instances import KINDS, grown; print(grown(KINDS['{0}']({1})) / {1})"


class Probe(NamedTuple):
    """`code` prints one number, and is the same in both trees."""

    unit: str
    code: str


PROBES = {
    "push_acknowledge_500B": Probe("pushes/cpu_s", _PUSHES.format(500)),
    "push_acknowledge_3kB": Probe("pushes/cpu_s", _PUSHES.format(3_000)),
    "frames_200B_1": Probe("frames/cpu_s", _FRAMES.format("200B_1")),
    "frames_200B_8": Probe("frames/cpu_s", _FRAMES.format("200B_8")),
    "instance_16384": Probe("bytes", _BYTES.format("instance_and_connection_facts", 16_384)),
    "instance_100000": Probe("bytes", _BYTES.format("instance_and_connection_facts", 100_000)),
}


class Tree(NamedTuple):
    """Where a probe runs, and the variables that choose the build."""

    directory: Path
    variables: dict[str, str]

    def measured(self, probe: Probe) -> float:
        """Raises subprocess.SubprocessError, ValueError."""
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
        }
        reported = subprocess.run(
            [sys.executable, "-c", probe.code],
            cwd=self.directory,
            env=environment | self.variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return float(reported.stdout.split()[-1])


def compiled(directory: Path) -> Tree | None:
    """The compiled build of an extracted commit, if it has one. Raises subprocess.SubprocessError."""
    if not (directory / "hatch_build.py").exists():
        return None
    target = directory / "build" / "compiled"
    subprocess.run([sys.executable, "hatch_build.py", str(target)], cwd=directory, check=True, capture_output=True)
    return Tree(directory, {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(target), str(directory)])})


def main(commit: str, rounds: int, names: list[str]) -> int:
    failed = []
    with tempfile.TemporaryDirectory(prefix="headroom-against-") as temporary:
        archive = subprocess.run(["git", "archive", commit], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", temporary], input=archive.stdout, check=True)
        trees = {commit: Tree(Path(temporary), {"HEADROOM_PURE": "1", "PYTHONPATH": temporary})}
        baselines = {commit: commit, "interpreted": commit, "compiled": commit}
        if (before := compiled(Path(temporary))) is not None:
            trees[f"{commit}_compiled"] = before
            baselines |= dict.fromkeys(("compiled", f"{commit}_compiled"), f"{commit}_compiled")
        trees |= {build: Tree(Path.cwd(), variables) for build, variables in builds().items()}
        for name in names or PROBES:
            found: dict[str, list[float]] = defaultdict(list)
            try:
                for _ in range(rounds):
                    for kind, tree in trees.items():
                        found[kind].append(tree.measured(PROBES[name]))
            except (subprocess.SubprocessError, ValueError) as exc:
                print(f"{name}: {exc}", file=sys.stderr, flush=True)
                failed.append(name)
                continue
            medians = {kind: statistics.median(values) for kind, values in found.items()}
            for kind, values in found.items():
                value, baseline = medians[kind], baselines[kind]
                tell(f"{name}_{kind}", value, PROBES[name].unit, value / medians[baseline], baseline, digits=0)
                print(f"  {min(values):.0f} to {max(values):.0f} in {rounds} rounds", flush=True)
    if failed:
        print(f"without a figure: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
