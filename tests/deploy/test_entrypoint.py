"""The image's entry point: what it starts for Headroom's commands and for the pods of Spark on Kubernetes.

Names of variables and options: Spark's org.apache.spark.deploy.k8s.Constants and KubernetesExecutorBackend.
"""

import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "deploy" / "spark" / "entrypoint.sh"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Dname=two words",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Programs that print their arguments, a line each."""
    (tmp_path / "bin").mkdir()
    for name in ("headroom", "java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def started(home: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": f"{home / 'bin'}:/usr/bin:/bin", "SPARK_HOME": str(home), **environment}
    return subprocess.run([ENTRYPOINT, *argv], env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_other_arguments_are_those_of_headroom(home: Path) -> None:
    assert started(home, "job", "quota-headroom").stdout.split() == ["headroom", "job", "quota-headroom"]
    assert started(home).stdout.split() == ["headroom"]


def test_driver_submits_in_client_mode_with_its_bind_address(home: Path) -> None:
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "--class", "Main", "local:///job.py", "a b"]
    output = started(home, "driver", *arguments, SPARK_DRIVER_BIND_ADDRESS="10.0.0.6").stdout.splitlines()
    assert output[:3] == ["spark-submit", "--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.0.0.6" in output
    assert output[-len(arguments) :] == arguments


ROLES = {
    "driver": {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.6"},
    "executor": EXECUTOR,
    "job": {},
    "serve": {},
}


@pytest.mark.parametrize(("role", "environment"), ROLES.items())
@pytest.mark.parametrize("is_known", [True, False])
def test_spark_has_a_name_for_a_user_of_any_id(
    home: Path, role: str, environment: dict[str, str], *, is_known: bool
) -> None:
    """As in a pod of OpenShift: an id that is in no passwd file."""
    programs = {"id": '[ "$1" = -u ] && echo 1000680000 || echo 0', "getent": f"exit {0 if is_known else 2}"}
    names = ("HOME", "LD_PRELOAD", "NSS_WRAPPER_PASSWD", "NSS_WRAPPER_GROUP")
    shown = "; ".join(f'echo "{name}=${{{name}:-}}"' for name in names)
    for name, body in (programs | dict.fromkeys(("headroom", "java", "spark-submit"), shown)).items():
        (home / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (home / "bin" / name).chmod(0o755)
    done = started(home, role, **environment, TMPDIR=str(home), HOME="/")
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines())
    passwd = home / "headroom-passwd"
    if is_known or role == "serve":  # which works without a name
        assert (variables["LD_PRELOAD"], passwd.exists()) == ("", False)
    else:
        assert variables["LD_PRELOAD"] == "libnss_wrapper.so"
        assert (variables["NSS_WRAPPER_PASSWD"], variables["HOME"]) == (str(passwd), str(home))
        assert passwd.read_text() == f"headroom:x:1000680000:0:headroom:{home}:/usr/sbin/nologin\n"


def test_executor_connects_to_the_driver_with_the_options_of_its_environment(home: Path) -> None:
    output = started(home, "executor", **EXECUTOR).stdout.splitlines()
    assert output[:5] == ["java", "-Dspark.driver.port=7078", "-Dname=two words", "-Xms1g", "-Xmx1g"]
    backend = output.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    options = dict(zip(output[backend + 1 :: 2], output[backend + 2 :: 2], strict=True))
    assert options == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "job-exec-1",
    }


@pytest.mark.parametrize("missing", ["SPARK_DRIVER_URL", "SPARK_EXECUTOR_ID", "SPARK_EXECUTOR_MEMORY"])
def test_executor_without_a_variable_of_spark_fails_with_its_name(home: Path, missing: str) -> None:
    found = started(home, "executor", **{name: value for name, value in EXECUTOR.items() if name != missing})
    assert found.returncode != 0
    assert missing in found.stderr
