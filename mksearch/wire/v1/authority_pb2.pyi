from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetChallengeRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetChallengeResponse(_message.Message):
    __slots__ = ("server_id", "challenge", "sealing_key", "generation", "signature")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    SEALING_KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    challenge: bytes
    sealing_key: bytes
    generation: int
    signature: bytes
    def __init__(self, server_id: _Optional[int] = ..., challenge: _Optional[bytes] = ..., sealing_key: _Optional[bytes] = ..., generation: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class InstallShareRequest(_message.Message):
    __slots__ = ("body", "signature", "sealed")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    sealed: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class InstallShareResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class RefreshShareRequest(_message.Message):
    __slots__ = ("body", "signature", "sealed")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    sealed: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class RefreshShareResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class HelpRepairRequest(_message.Message):
    __slots__ = ("body", "signature", "sealed")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    sealed: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class HelpRepairResponse(_message.Message):
    __slots__ = ("part", "signature")
    PART_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    signature: bytes
    def __init__(self, part: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RepairShareRequest(_message.Message):
    __slots__ = ("body", "signature", "parts")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., parts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RepairShareResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class IssuePartialKeyRequest(_message.Message):
    __slots__ = ("credential", "credential_signature", "user_key", "challenge", "signature", "id_token", "attributes")
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    USER_KEY_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ID_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    credential: bytes
    credential_signature: bytes
    user_key: bytes
    challenge: bytes
    signature: bytes
    id_token: bytes
    attributes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, credential: _Optional[bytes] = ..., credential_signature: _Optional[bytes] = ..., user_key: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., id_token: _Optional[bytes] = ..., attributes: _Optional[_Iterable[str]] = ...) -> None: ...

class IssuePartialKeyResponse(_message.Message):
    __slots__ = ("sealed", "signature", "generation", "attributes")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    sealed: bytes
    signature: bytes
    generation: int
    attributes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sealed: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., generation: _Optional[int] = ..., attributes: _Optional[_Iterable[str]] = ...) -> None: ...
