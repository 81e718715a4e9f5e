"""The wire's bytes: the layout of frames, every message, the public proto."""

from collections.abc import Callable

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
)

from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, ResultFrame
from svc_wire.layout import LAYOUT_VERSION, layout_text
from svc_wire.record import Header
from tests.support.messages import LINKS
from tests.support.plans import SMALL, plan_buffer, result_buffer
from twostroke.v1 import admin_pb2, generation_pb2

Golden = Callable[[str, str], None]

SAMPLE = Capacity(
    num_blocks=4096, block_size=16, rows_max=64, tokens_max=1024, lanes=80,
    model_len_max=8192, vocab_size=49152, host_blocks=1024, block_copy_ns=40_000,
)  # fmt: skip


def test_the_layout_of_frames(golden: Golden) -> None:
    golden("layout.txt", layout_text(SAMPLE))


def test_the_bytes_of_messages(golden: Golden) -> None:
    lines = []
    for link, (codec, messages) in LINKS.items():
        lines.append(link)
        lines += [f"  {type(m).__name__:<12}{codec.encode(m).hex()}" for m in messages]
    golden("messages.txt", "\n".join(lines) + "\n")


def test_the_public_proto(golden: Golden) -> None:
    lines = []
    for module in (generation_pb2, admin_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        lines += _file_lines(file)
    golden("proto.txt", "\n".join(lines) + "\n")


def _file_lines(file: FileDescriptorProto) -> list[str]:
    lines = [f"package {file.package} {file.syntax}"]
    for service in file.service:
        lines.append(f"service {service.name}")
        lines += [_method_line(method) for method in service.method]
    for message in file.message_type:
        lines.append(f"message {message.name}")
        lines += [_field_line(message, field) for field in message.field]
    for enum in file.enum_type:
        lines.append(f"enum {enum.name}")
        lines += [f"  {value.number} {value.name}" for value in enum.value]
    return lines


def _method_line(method: MethodDescriptorProto) -> str:
    returns = ("stream " if method.server_streaming else "") + method.output_type
    takes = ("stream " if method.client_streaming else "") + method.input_type
    return f"  {method.name}({takes}) returns {returns}"


def _field_line(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    presence = ""
    if field.proto3_optional:
        presence = " optional"
    elif field.HasField("oneof_index"):
        presence = f" oneof {message.oneof_decl[field.oneof_index].name}"
    return f"  {field.number} {field.name} {repeated}{field.type_name or kind}{presence}"


def test_the_checksums_of_frames(golden: Golden) -> None:
    """Processes of two builds must agree on the sum, of which the layout's text says nothing."""
    lines = []
    for frame in (
        PlanFrame(plan_buffer(SMALL), SMALL, writable=True),
        ResultFrame(result_buffer(SMALL), SMALL, writable=True),
    ):
        frame.raw[64:] = [index % 251 for index in range(len(frame.raw) - 64)]
        header = Header(0, frame.magic, LAYOUT_VERSION, 2, 3, len(frame.raw), 1, 1, 1, 1, 0, 0, 0)
        frame.sections["header"] = header
        lines.append(f"{type(frame).__name__} {frame.checksum(len(frame.raw)):#018x}\n")
    golden("checksums.txt", "".join(lines))
