from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimRequest(_message.Message):
    __slots__ = ("token", "owner_key", "collection")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_KEY_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    token: str
    owner_key: bytes
    collection: bytes
    def __init__(self, token: _Optional[str] = ..., owner_key: _Optional[bytes] = ..., collection: _Optional[bytes] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("server_id", "server_key")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    server_key: bytes
    def __init__(self, server_id: _Optional[int] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    def __init__(self, manifest: _Optional[bytes] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("manifest_hash",)
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ...) -> None: ...

class ListMissingRequest(_message.Message):
    __slots__ = ("manifest_hash",)
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ...) -> None: ...

class ListMissingResponse(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, names: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("manifest_hash", "name", "data", "whole")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    name: bytes
    data: bytes
    whole: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, manifest_hash: _Optional[bytes] = ..., name: _Optional[bytes] = ..., data: _Optional[bytes] = ..., whole: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("n_objects",)
    N_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    n_objects: int
    def __init__(self, n_objects: _Optional[int] = ...) -> None: ...

class ActivateRequest(_message.Message):
    __slots__ = ("manifest_hash", "signature")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    signature: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ActivateResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("renewal",)
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    renewal: bytes
    def __init__(self, renewal: _Optional[bytes] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("server_id", "server_key", "collection", "version", "release", "signature")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    server_key: bytes
    collection: bytes
    version: int
    release: str
    signature: bytes
    def __init__(self, server_id: _Optional[int] = ..., server_key: _Optional[bytes] = ..., collection: _Optional[bytes] = ..., version: _Optional[int] = ..., release: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...
