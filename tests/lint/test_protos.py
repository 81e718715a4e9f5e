"""The generated code is of the proto that lies beside it. `make protos` makes it anew."""

import importlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parents[2]


def test_the_generated_code_is_not_stale() -> None:
    buf = Path(sys.executable).with_name("buf")
    compiled = subprocess.run(
        [buf, "build", "--as-file-descriptor-set", "--exclude-source-info", "-o", "-"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    files = FileDescriptorSet.FromString(compiled).file
    ours = {file.name: file for file in files if file.name.startswith("twostroke/")}
    assert len(ours) == len(list((ROOT / "protos").rglob("*.proto")))
    for name, fresh in ours.items():
        module = importlib.import_module(name.replace("/", ".").replace(".proto", "_pb2"))
        committed = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        _drop_json_names(fresh.message_type)
        _drop_json_names(committed.message_type)
        assert committed == fresh


def _drop_json_names(messages: Iterable[DescriptorProto]) -> None:
    """Compilers differ in whether they write out the JSON names that follow from the names."""
    for message in messages:
        _drop_json_names(message.nested_type)
        for field in message.field:
            field.ClearField("json_name")
