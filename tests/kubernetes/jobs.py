"""Checks: quota-headroom as the chart's CronJob, and by spark-submit with driver and executor pods."""

import json
import os
import time
from pathlib import Path

import pyspark

from tests.kubernetes.images import TAG
from tests.kubernetes.release import PASSWORD_SECRET, STORE_URL, Release
from tests.kubernetes.rig import NAMESPACE, NODE_IP, ROOT, STATE, CheckError, kubectl, run, until

EXECUTORS = 2
JOB_S = 600.0
_JOB = "local:///opt/headroom/lib/python3.11/site-packages/spark_jobs/jobs/quota_headroom.py"
_USED = "SELECT count() FROM headroom.quota_usage WHERE source = 'gateway' AND ts < toStartOfMinute(now())"
_RUNS = "SELECT count() FROM headroom.job_runs FINAL WHERE job = 'quota_headroom' AND status = 'succeeded'"


def cpu_s(pod_uid: str) -> float:
    """CPU seconds of the pod's control group until now; 0.0 once it is gone."""
    try:
        [usage] = Path("/sys/fs/cgroup/cpuacct").glob(f"kubepods/*/pod{pod_uid}/cpuacct.usage")
        return int(usage.read_text()) / 1e9
    except (OSError, ValueError):
        return 0.0


def run_cron_job(namespace: str) -> str:
    """Starts the CronJob's job now; how long it took, and its CPU."""
    began, used = time.monotonic(), 0.0
    kubectl("-n", namespace, "create", "job", "now", "--from=cronjob/headroom-quota")

    def phase() -> str:
        nonlocal used
        pods = json.loads(kubectl("-n", namespace, "get", "pods", "-l", "job-name=now", "-o", "json"))["items"]
        for pod in pods:
            used = max(used, cpu_s(pod["metadata"]["uid"]))
        return next((pod["status"]["phase"] for pod in pods if pod["status"]["phase"] in ("Succeeded", "Failed")), "")

    ended = until(JOB_S, phase, "the job ends")
    took = time.monotonic() - began
    if ended != "Succeeded":
        raise CheckError(f"the job failed: {kubectl('-n', namespace, 'logs', 'job/now', '--tail=3')}")
    return f"succeeded in {took:.0f} s{f' with {used:.1f} CPU-s' if used else ', its CPU is not known'}"


def cron_job(release: Release) -> str:
    until(150, lambda: release.outside.query(_USED)[0][0], "clients' usage of a whole minute is stored")
    before = release.outside.query(_RUNS)[0][0]
    said = run_cron_job(NAMESPACE)
    if release.outside.query(_RUNS)[0][0] != before + 1:
        raise CheckError(f"{said}, but no run is stored")
    return f"{said}, its rows are stored"


def options() -> list[str]:
    """The options of docs/kubernetes.md, with the image and the token of the rig."""
    token = (STATE / "pki" / "tokens.csv").read_text().partition(",")[0]
    template = ROOT / "deploy" / "spark" / "pod-template.yaml"
    conf = {
        "namespace": NAMESPACE,
        "container.image": f"localhost/headroom:{TAG}",
        "authenticate.submission.caCertFile": STATE / "pki" / "ca.crt",
        "authenticate.submission.oauthToken": token,
        "authenticate.driver.serviceAccountName": "headroom-spark",
        "driver.podTemplateFile": template,
        "executor.podTemplateFile": template,
        "driver.secretKeyRef.HEADROOM_CLICKHOUSE_PASSWORD": f"{PASSWORD_SECRET}:password",
        "executor.secretKeyRef.HEADROOM_CLICKHOUSE_PASSWORD": f"{PASSWORD_SECRET}:password",
        "driver.request.cores": "200m",
        "executor.request.cores": "200m",
        "executor.deleteOnTermination": "false",  # so that they can be counted
        "submission.waitAppCompletion": "false",  # the pods are asked
    }
    others = {
        "spark.executor.instances": EXECUTORS,
        "spark.pyspark.python": "/opt/headroom/bin/python3",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": "file:///tmp/headroom-spark-warehouse",
    }
    settings = {**{f"spark.kubernetes.{name}": value for name, value in conf.items()}, **others}
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def spark_submit(release: Release) -> str:
    """In the namespace that enforces the `restricted` standard."""
    kubectl("-n", NAMESPACE, "apply", "-f", ROOT / "deploy" / "spark" / "account.yaml")
    before = release.outside.query(_RUNS)[0][0]
    os.environ["SPARK_HOME"] = home = str(Path(pyspark.__file__).parent)
    master = ["--master", f"k8s://https://{NODE_IP}:6443", "--deploy-mode", "cluster", "--name", "quota-headroom"]
    began = time.monotonic()
    run(f"{home}/bin/spark-submit", *master, *options(), _JOB, "--url", STORE_URL, "--since", "15m")

    def pods(role: str) -> list[str]:
        phases = "jsonpath={.items[*].status.phase}"
        return kubectl("-n", NAMESPACE, "get", "pods", "-l", f"spark-role={role}", "-o", phases).split()

    until(JOB_S, lambda: {"Succeeded", "Failed"} & set(pods("driver")), "the driver's pod ends")
    took, executors = time.monotonic() - began, pods("executor")
    runs = release.outside.query(_RUNS)[0][0] - before
    if pods("driver") != ["Succeeded"] or runs != 1 or len(executors) != EXECUTORS:
        log = kubectl("-n", NAMESPACE, "logs", "-l", "spark-role=driver", "--tail=8")
        raise CheckError(f"driver {pods('driver')}, executors {executors}, {runs} runs stored: {log[-900:]}")
    kubectl("-n", NAMESPACE, "delete", "pods", "-l", "spark-role")
    return f"driver and {len(executors)} executors, {took:.0f} s, its rows are stored"
