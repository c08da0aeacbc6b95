"""Finds Java 17 and fetches the jars of Apache Kafka 4.3.1 once, with the Ivy in PySpark's wheel."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment
from xml.sax.saxutils import quoteattr

import pyspark

from headroom.demo.processes import DemoError, exclusive, start, stop
from spark_jobs.session import java_version

KAFKA_VERSION = "4.3.1"
JAVA_NEEDED = 17
LIBS_VARIABLE = "HEADROOM_KAFKA_LIBS"
MIRROR_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"  # as Spark names it
MARKER = ".complete"  # written last: a directory without it is an interrupted download

# One module file for all three, so that Ivy resolves one version of each artifact (otherwise two of log4j).
# kafka-tools depends on Connect and Jetty, which the command classes do not need.
_KAFKA = f"""
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}">
      <exclude org="org.apache.kafka" module="connect-.*" matcher="regexp"/>
    </dependency>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.1"/>
"""
_IVY_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="headroom" module="libs"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default(runtime)">{dependencies}</dependencies>
</ivy-module>
"""

_IVY_MIRROR = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root={root}/></resolvers>
</ivysettings>
"""

# Messages by which Ivy reports a missing artifact, most specific first; its exit status is not reliable.
_COMPLAINTS = ("Server access", "Exception", "FAILED", "not found", "UNRESOLVED")

Progress = Callable[[str], None]


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Path of a `java` of version 17 or newer: that of JAVA_HOME where it is set, as Spark has it, else that on PATH.
    Raises DemoError."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    version = java_version(java) if java else 0
    if java and version >= JAVA_NEEDED:
        return java
    unfit = f"Java {version}" if version else "not a Java that runs"
    seen = f"{java} is {unfit}" if java else "none in JAVA_HOME or PATH"
    change = "set JAVA_HOME to a newer one" + (", or unset it for that on PATH" if home else "")
    raise DemoError(f"Java {JAVA_NEEDED} or newer is needed: {'JAVA_HOME: ' if home else ''}{seen}; {change}")


def kafka_libs(
    java: str, cache: Path | None = None, progress: Progress = print, environ: Mapping[str, str] = os.environ
) -> Path:
    """Directory of the Kafka jars; fetches them into `cache` (default `.cache/kafka-4.3.1`) if needed.

    `HEADROOM_KAFKA_LIBS` names an existing directory (`libs` of a Kafka distribution) instead.
    Raises DemoError.
    """
    own = environ.get(LIBS_VARIABLE)
    if own:
        if not any(Path(own).glob("kafka_2.13-*.jar")):
            raise DemoError(f"{LIBS_VARIABLE}={own} holds no kafka_2.13-*.jar")
        return Path(own)
    cache = cache or Path(".cache") / f"kafka-{KAFKA_VERSION}"
    libs = (cache / "libs").absolute()
    fetch_once(java, libs, _KAFKA, progress, f"the Kafka {KAFKA_VERSION} jars (about 45 MB, once)")
    return libs


def fetch_once(java: str, libs: Path, dependencies: str, progress: Progress, what: str) -> None:
    """Fetches the jars of these elements of an Ivy module into `libs` unless they are there. Raises DemoError.

    Of two processes that need them at once, the second waits: Ivy does not share its cache.
    """
    if (libs / MARKER).exists():
        return
    try:
        libs.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(libs.parent):
            if not (libs / MARKER).exists():
                progress(f"fetching {what}")
                _fetch(java, libs, dependencies, progress)
    except OSError as exc:
        raise DemoError(f"cannot keep the Kafka jars in {libs.parent}: {exc.strerror or exc}") from exc


def _fetch(java: str, libs: Path, dependencies: str, progress: Progress) -> None:
    """Fetches into a sibling directory and renames it, so that it is complete. Ivy's cache lets a retry resume."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=libs.parent) as scratch:
        module, fetched = Path(scratch) / "ivy.xml", Path(scratch) / "libs"
        module.write_text(_IVY_MODULE.format(dependencies=dependencies))
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
        if ivy is None:
            raise DemoError("cannot fetch the Kafka jars: this PySpark ships no Ivy")
        arguments = ["-jar", str(ivy), "-cache", str(libs.parent / "ivy"), "-ivy", str(module)]
        arguments += ["-retrieve", f"{fetched}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
        if mirror := os.environ.get(MIRROR_VARIABLE):
            settings = Path(scratch) / "ivysettings.xml"
            settings.write_text(_IVY_MIRROR.format(root=quoteattr(f"{mirror.rstrip('/')}/")))
            arguments += ["-settings", str(settings)]
        options = Path(scratch) / "options"  # a file: `ps` would show the proxy's password
        escaped = (
            option.replace("\\", "\\\\").replace('"', '\\"') for option in proxy_options(getproxies_environment())
        )
        options.write_text("".join(f'"{option}"\n' for option in escaped))
        options.chmod(0o600)
        _run_ivy([java, f"@{options}", *arguments], progress)
        (fetched / MARKER).touch()
        if libs.exists():
            libs.rename(Path(scratch) / "incomplete")
        fetched.rename(libs)
    shutil.rmtree(libs.parent / "ivy", ignore_errors=True)


def proxy_options(proxies: Mapping[str, str]) -> Iterator[str]:
    """A JVM's options for the proxies that the environment names, which it does not read itself."""
    for scheme in ("http", "https"):
        url = proxies.get(scheme) or proxies.get("all") or ""
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        if not proxy.hostname:
            continue
        yield f"-D{scheme}.proxyHost={proxy.hostname}"
        yield f"-D{scheme}.proxyPort={proxy.port or 80}"
        if proxy.username:
            yield f"-Dhttp.proxyUser={unquote(proxy.username)}"  # Ivy reads these two for both schemes
            yield f"-Dhttp.proxyPassword={unquote(proxy.password or '')}"
            yield "-Djdk.http.auth.tunneling.disabledSchemes="
    names = [name.strip() for name in proxies.get("no", "").split(",") if name.strip(" .")]
    domains = [name.removeprefix("*").removeprefix(".") for name in names]
    patterns = [f"{domain}|*.{domain}" if domain else "*" for domain in domains]
    yield f"-Dhttp.nonProxyHosts={'|'.join(patterns) or 'localhost|127.*|[::1]'}"  # the latter is Java's own


def _run_ivy(argv: list[str], progress: Progress) -> None:
    """Raises DemoError with Ivy's last warning when something is missing."""
    downloaded, complaints = 0, list[str]()
    ivy = start(argv, stderr=subprocess.STDOUT, stdout=subprocess.PIPE)
    try:
        for line in ivy.stdout or ():
            said = line.decode(errors="replace").strip()
            if "[SUCCESSFUL ]" in said:
                downloaded += 1
                if downloaded % 10 == 0:
                    progress(f"  {downloaded} jars")
            elif any(word in said for word in _COMPLAINTS):
                complaints.append(said.strip(": "))
        status = ivy.wait()
    finally:
        stop(ivy)
    if status or complaints:
        ranked = (complaint for word in _COMPLAINTS for complaint in complaints if word in complaint)
        reason = next(ranked, f"Ivy ended with {status}")
        raise DemoError(f"cannot fetch the Kafka jars: {reason}; {MIRROR_VARIABLE} may name a mirror")
