"""A quota callback in Java (KIP-257), compiled for a real broker: all clients have the same limit, but those named
`limit-NUMBER-...`, which have that one."""

import subprocess
import zipfile
from pathlib import Path

CLASS = "headroom.FixedQuotas"
LIMIT = 100_000.0  # for clients of other names
LIMIT_CONFIG = "headroom.fixed.limit"  # bytes per second, in server.properties

_SOURCE = """
package headroom;

import java.util.Map;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.quota.ClientQuotaCallback;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaType;

public class FixedQuotas implements ClientQuotaCallback {
    private double limit;

    @Override public void configure(Map<String, ?> configs) {
        Object given = configs.get("headroom.fixed.limit");
        limit = given == null ? Double.MAX_VALUE : Double.parseDouble(given.toString());
    }

    @Override public Map<String, String> quotaMetricTags(ClientQuotaType type, KafkaPrincipal user, String clientId) {
        return Map.of("user", user.getName(), "client-id", clientId);
    }

    @Override public Double quotaLimit(ClientQuotaType type, Map<String, String> tags) {
        if (type != ClientQuotaType.PRODUCE && type != ClientQuotaType.FETCH) return Double.MAX_VALUE;
        String[] named = tags.getOrDefault("client-id", "").split("-");
        return named.length > 1 && named[0].equals("limit") ? Double.parseDouble(named[1]) : limit;
    }

    @Override public void updateQuota(ClientQuotaType type, ClientQuotaEntity entity, double value) { }

    @Override public void removeQuota(ClientQuotaType type, ClientQuotaEntity entity) { }

    @Override public boolean quotaResetRequired(ClientQuotaType type) { return false; }

    @Override public boolean updateClusterMetadata(Cluster cluster) { return false; }

    @Override public void close() { }
}
"""


def libs_with_callback(java: str, libs: Path, directory: Path) -> Path:
    """A directory of Kafka's jars and one with the callback, for a Cluster's `libs`. Needs a JDK."""
    source = directory / "source" / "headroom" / "FixedQuotas.java"
    source.parent.mkdir(parents=True)
    source.write_text(_SOURCE)
    classes, together = directory / "classes", directory / "libs"
    javac = Path(java).resolve().parent / "javac"
    subprocess.run(
        [javac, "--release", "17", "-cp", f"{libs}/*", "-d", str(classes), str(source)], check=True, capture_output=True
    )
    together.mkdir()
    with zipfile.ZipFile(together / "fixed-quotas.jar", "w") as jar:
        jar.write(classes / "headroom" / "FixedQuotas.class", "headroom/FixedQuotas.class")
    for one in libs.glob("*.jar"):
        (together / one.name).symlink_to(one)
    return together


def fixed_quotas(quota_key: str, user: str, client_id: str, _broker_id: int) -> tuple[dict[str, str], float | None]:
    """The same in Python, for the setting `quotas.callback`."""
    tags = {"user": user, "client-id": client_id}
    if quota_key not in ("producer_byte_rate", "consumer_byte_rate"):
        return tags, None
    head, *rest = client_id.split("-")
    return tags, float(rest[0]) if head == "limit" and rest else LIMIT


def kafkas_own_rules(_quota_key: str, _user: str, _client_id: str, _broker_id: int) -> None:
    """For the setting `quotas.callback`."""
