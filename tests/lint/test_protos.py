"""The generated code is of the proto that lies beside it. `make protos` makes it anew."""

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from twostroke.v1 import generation_pb2 as pb

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
    (fresh,) = FileDescriptorSet.FromString(compiled).file
    committed = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for file in (fresh, committed):
        _drop_json_names(file)
    assert committed == fresh


def _drop_json_names(file: FileDescriptorProto) -> None:
    """Compilers differ in whether they write out the JSON names that follow from the names."""
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
