"""telemetry/proto: the committed Python code matches the .proto file, and the wheel includes both."""

import importlib
import tomllib
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb

PROTO = "headroom/telemetry/v1/telemetry.proto"


def test_committed_code_is_generated_from_the_proto(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    protoc = importlib.import_module("grpc_tools.protoc")
    source, described = pytestconfig.rootpath / "telemetry" / "proto", tmp_path / "described"
    assert protoc.main(["", f"-I{source}", f"--descriptor_set_out={described}", PROTO]) == 0
    (file,) = FileDescriptorSet.FromString(described.read_bytes()).file
    for field in (field for message in file.message_type for field in message.field):
        field.ClearField("json_name")  # which is for plug-ins of the compiler
    assert file == FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb), "run `make proto`"


def test_committed_code_works_with_any_protobuf_that_pip_may_choose(pytestconfig: pytest.Config) -> None:
    """Code that is generated for a release refuses older ones; ours was generated before generators did that."""
    code = (pytestconfig.rootpath / "telemetry" / "proto" / PROTO.replace(".proto", "_pb2.py")).read_text()
    assert "ValidateProtobufRuntimeVersion" not in code
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())["project"]
    (protobuf,) = (
        requirement for requirement in map(Requirement, project["dependencies"]) if requirement.name == "protobuf"
    )
    for version in ("5.26.1", "5.29.6", "6.33.6", "7.36.2"):  # dbt 1.9, dbt 1.12 and Beam, the lock's
        assert protobuf.specifier.contains(version)


def test_proto_is_included_in_the_wheel(pytestconfig: pytest.Config) -> None:
    included = {file.distribution_path for file in WheelBuilder(str(pytestconfig.rootpath)).recurse_included_files()}
    assert {f"telemetry/proto/{PROTO}", f"telemetry/proto/{PROTO.replace('.proto', '_pb2.py')}"} <= included
