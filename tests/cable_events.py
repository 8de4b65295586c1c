"""What a client of Action Cable makes of the frames of a router, which never reads them itself."""

from msgspec import Raw, Struct, json

from syncline.wire import cable


class _Discriminator(Struct):
    type: Raw = Raw(b"null")


_typed: "json.Decoder[cable.TypedEvent]" = json.Decoder(cable.TypedEvent)


def decode_event(frame: bytes) -> cable.ServerEvent:
    if bytes(json.decode(frame, type=_Discriminator).type) == b"null":
        return json.decode(frame, type=cable.Data)
    return _typed.decode(frame)
