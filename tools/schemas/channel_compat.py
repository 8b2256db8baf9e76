"""The gRPC channel of a release against today's. Numbers are the contract, names are what people call them."""

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet

from tools.schemas.finding import Finding, Rule

Messages = dict[str, DescriptorProto]
Enums = dict[str, EnumDescriptorProto]


def channel_findings(released: bytes, today: bytes) -> list[Finding]:
    """Every broken rule of the proto files, out of two descriptor sets."""
    old, new = FileDescriptorSet.FromString(released), FileDescriptorSet.FromString(today)
    return [
        *_message_findings(_messages(old), _messages(new)),
        *_enum_findings(_enums(old), _enums(new)),
        *_rpcs(old, new),
    ]


def _messages(files: FileDescriptorSet) -> Messages:
    return {f"{file.package}.{made.name}": made for file in files.file for made in file.message_type}


def _enums(files: FileDescriptorSet) -> Enums:
    return {f"{file.package}.{made.name}": made for file in files.file for made in file.enum_type}


def _gone(name: str) -> Finding:
    return Finding(name, "", Rule.REMOVED_TYPE, "it was removed or renamed")


def _message_findings(old: Messages, new: Messages) -> Iterator[Finding]:
    for name, message in old.items():
        if name not in new:
            yield _gone(name)
            continue
        numbers = {field.number: field for field in new[name].field}
        for field in message.field:
            yield from _field_findings(name, field, numbers.get(field.number))
        yield from _revived(name, message, new[name])


def _field_findings(name: str, old: FieldDescriptorProto, new: FieldDescriptorProto | None) -> Iterator[Finding]:
    if new is None:
        yield Finding(name, old.name, Rule.REMOVED_FIELD, f"number {old.number} was removed or given another number")
    elif new.name != old.name:
        yield Finding(name, old.name, Rule.REUSED_NUMBER, f"number {old.number} is used again, for {new.name}")
    elif (old.type, old.label, old.type_name) != (new.type, new.label, new.type_name):
        yield Finding(name, old.name, Rule.CHANGED_TYPE, "the type was changed")


def _revived(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[Finding]:
    """Fields with a number that an earlier one gave up."""
    for field in new.field:
        if any(span.start <= field.number < span.end for span in old.reserved_range):
            yield Finding(name, field.name, Rule.REUSED_NUMBER, f"number {field.number} was reserved")


def _enum_findings(old: Enums, new: Enums) -> Iterator[Finding]:
    for name, enum in old.items():
        if name not in new:
            yield _gone(name)
            continue
        numbers = {value.number: value.name for value in new[name].value}
        for value in enum.value:
            if value.number not in numbers:
                yield Finding(name, value.name, Rule.REMOVED_FIELD, f"number {value.number} was removed")
            elif numbers[value.number] != value.name:
                detail = f"number {value.number} is used again, for {numbers[value.number]}"
                yield Finding(name, value.name, Rule.REUSED_NUMBER, detail)


def _rpcs(old: FileDescriptorSet, new: FileDescriptorSet) -> Iterator[Finding]:
    after = _methods(new)
    for (service, method), kind in _methods(old).items():
        if (service, method) not in after:
            yield Finding(service, method, Rule.REMOVED_FIELD, "the rpc was removed or renamed")
        elif after[service, method] != kind:
            yield Finding(service, method, Rule.CHANGED_TYPE, "what the rpc takes or returns was changed")


def _methods(files: FileDescriptorSet) -> dict[tuple[str, str], tuple[str, str, bool, bool]]:
    return {
        (f"{file.package}.{service.name}", method.name): (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for file in files.file
        for service in file.service
        for method in service.method
    }
