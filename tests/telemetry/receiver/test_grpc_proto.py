"""telemetry/proto: the committed Python code matches the .proto file, and the wheel includes both."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

PROTO = "headroom/telemetry/v1/telemetry.proto"


def test_committed_code_is_generated_from_the_proto(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    protoc = importlib.import_module("grpc_tools.protoc")
    source = pytestconfig.rootpath / "telemetry" / "proto"
    assert protoc.main(["", f"-I{source}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]) == 0
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = PROTO.replace(".proto", suffix)
        assert (source / name).read_text() == (tmp_path / name).read_text(), "run `make proto`"


def test_proto_is_included_in_the_wheel(pytestconfig: pytest.Config) -> None:
    included = {file.distribution_path for file in WheelBuilder(str(pytestconfig.rootpath)).recurse_included_files()}
    assert {f"telemetry/proto/{PROTO}", f"telemetry/proto/{PROTO.replace('.proto', '_pb2.py')}"} <= included
