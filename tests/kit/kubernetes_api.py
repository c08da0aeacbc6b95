"""A Kubernetes API that knows pods, and runs each of them as a process of this machine.

Spark's Kubernetes scheduler creates executors with it. A pod runs `entrypoint` with the arguments and environment of
its container; images, volumes and limits are ignored.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

_CREATED = "2026-01-01T00:00:00Z"
_STOP_S = 60.0


class Pods:
    """Pods by name, their processes, and a log of each below `directory`."""

    def __init__(self, entrypoint: Path, directory: Path) -> None:
        self._entrypoint = entrypoint
        self._directory = directory
        self._pods: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        work = self._directory / name
        work.mkdir()
        argv = [str(self._entrypoint), *pod["spec"]["containers"][0].get("args", [])]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                argv, env=_environment(pod, work), stdout=log, stderr=log, cwd=work
            )
        self._pods[name] = pod

    def all(self) -> list[dict[str, Any]]:
        return [self.get(name) for name in list(self._pods)]

    def get(self, name: str) -> dict[str, Any]:
        """The pod with its status now. Raises KeyError."""
        pod, code = self._pods[name], self._processes[name].poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        state = {"running": {"startedAt": _CREATED}} if code is None else {"terminated": {"exitCode": code}}
        container = {"name": pod["spec"]["containers"][0]["name"], "ready": code is None, "state": state}
        unused = {"image": "", "imageID": "", "restartCount": 0}
        return {
            **pod,
            "status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [{**container, **unused}]},
        }

    def delete(self, names: list[str]) -> None:
        for name in names:
            if self._pods.pop(name, None) is not None:
                self._processes[name].terminate()

    def stop(self) -> None:
        """Ends all processes."""
        for process in self._processes.values():
            process.terminate()
            process.wait(_STOP_S)


def _environment(pod: dict[str, Any], work: Path) -> dict[str, str]:
    fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
    variables = {"PATH": os.environ["PATH"]}
    for variable in pod["spec"]["containers"][0].get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        variables[variable["name"]] = fields[field] if field else variable.get("value", "")
    return {**variables, "SPARK_LOCAL_DIRS": str(work)}  # else that of a volume


@contextmanager
def kubernetes_api(entrypoint: Path, directory: Path) -> Iterator[str]:
    """URL of the API. Pods end with the block."""
    pods = Pods(entrypoint, directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"pods": pods}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        pods.stop()


class _Handler(BaseHTTPRequestHandler):
    """Other kinds than pods are accepted and forgotten."""

    protocol_version = "HTTP/1.1"
    pods: Pods

    def do_GET(self) -> None:
        name = self._name()
        if name == "pods":
            self._answer(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": self.pods.all()})
            return
        try:
            self._answer(200, self.pods.get(name))
        except KeyError:
            self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})

    def do_POST(self) -> None:
        created = self._body()
        unset = {"uid": str(uuid.uuid4()), "creationTimestamp": _CREATED, "resourceVersion": "1"}
        created["metadata"] = {**unset, **created.get("metadata", {})}
        if created.get("kind") == "Pod":
            self.pods.create(created)
        self._answer(201, created)

    def do_PATCH(self) -> None:
        self._body()
        self.do_GET()

    def do_DELETE(self) -> None:
        self._body()
        name = self._name()
        self.pods.delete([pod["metadata"]["name"] for pod in self.pods.all()] if name == "pods" else [name])
        self._answer(200, {"kind": "Status", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _name(self) -> str:
        return urlparse(self.path).path.rpartition("/")[2]

    def _body(self) -> dict[str, Any]:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body: dict[str, Any] = json.loads(text or b"{}")
        return body

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps({"apiVersion": "v1", **content}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
