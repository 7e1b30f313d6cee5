from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetManifestRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("manifest", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("head", "shares", "further")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    head: ScoreRequestHead
    shares: bytes
    further: _containers.RepeatedCompositeFieldContainer[ScoreRequest]
    def __init__(self, head: _Optional[_Union[ScoreRequestHead, _Mapping]] = ..., shares: _Optional[bytes] = ..., further: _Optional[_Iterable[_Union[ScoreRequest, _Mapping]]] = ...) -> None: ...

class ScoreRequestHead(_message.Message):
    __slots__ = ("query_id", "version", "segment", "level", "n_vectors", "time", "signature", "blocks")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    N_VECTORS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    query_id: bytes
    version: int
    segment: bytes
    level: int
    n_vectors: int
    time: int
    signature: bytes
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, query_id: _Optional[bytes] = ..., version: _Optional[int] = ..., segment: _Optional[bytes] = ..., level: _Optional[int] = ..., n_vectors: _Optional[int] = ..., time: _Optional[int] = ..., signature: _Optional[bytes] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("head", "sums", "signature", "further")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    head: ScoreResponseHead
    sums: bytes
    signature: bytes
    further: _containers.RepeatedCompositeFieldContainer[ScoreResponse]
    def __init__(self, head: _Optional[_Union[ScoreResponseHead, _Mapping]] = ..., sums: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., further: _Optional[_Iterable[_Union[ScoreResponse, _Mapping]]] = ...) -> None: ...

class ScoreResponseHead(_message.Message):
    __slots__ = ("query_id", "n_vectors", "n_rows", "n_tables")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    N_VECTORS_FIELD_NUMBER: _ClassVar[int]
    N_ROWS_FIELD_NUMBER: _ClassVar[int]
    N_TABLES_FIELD_NUMBER: _ClassVar[int]
    query_id: bytes
    n_vectors: int
    n_rows: int
    n_tables: int
    def __init__(self, query_id: _Optional[bytes] = ..., n_vectors: _Optional[int] = ..., n_rows: _Optional[int] = ..., n_tables: _Optional[int] = ...) -> None: ...

class GetRecordsRequest(_message.Message):
    __slots__ = ("version", "segment", "slots", "query_id", "time", "signature", "further")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    version: int
    segment: bytes
    slots: _containers.RepeatedScalarFieldContainer[int]
    query_id: bytes
    time: int
    signature: bytes
    further: _containers.RepeatedCompositeFieldContainer[GetRecordsRequest]
    def __init__(self, version: _Optional[int] = ..., segment: _Optional[bytes] = ..., slots: _Optional[_Iterable[int]] = ..., query_id: _Optional[bytes] = ..., time: _Optional[int] = ..., signature: _Optional[bytes] = ..., further: _Optional[_Iterable[_Union[GetRecordsRequest, _Mapping]]] = ...) -> None: ...

class GetRecordsResponse(_message.Message):
    __slots__ = ("slot_width", "elements", "further")
    SLOT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    slot_width: int
    elements: bytes
    further: _containers.RepeatedCompositeFieldContainer[GetRecordsResponse]
    def __init__(self, slot_width: _Optional[int] = ..., elements: _Optional[bytes] = ..., further: _Optional[_Iterable[_Union[GetRecordsResponse, _Mapping]]] = ...) -> None: ...

class SelectRequest(_message.Message):
    __slots__ = ("head", "selectors")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SELECTORS_FIELD_NUMBER: _ClassVar[int]
    head: SelectRequestHead
    selectors: bytes
    def __init__(self, head: _Optional[_Union[SelectRequestHead, _Mapping]] = ..., selectors: _Optional[bytes] = ...) -> None: ...

class SelectRequestHead(_message.Message):
    __slots__ = ("query_id", "version", "segment", "n_fetches", "time", "signature")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    N_FETCHES_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    query_id: bytes
    version: int
    segment: bytes
    n_fetches: int
    time: int
    signature: bytes
    def __init__(self, query_id: _Optional[bytes] = ..., version: _Optional[int] = ..., segment: _Optional[bytes] = ..., n_fetches: _Optional[int] = ..., time: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SelectResponse(_message.Message):
    __slots__ = ("head", "elements", "signature")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    head: SelectResponseHead
    elements: bytes
    signature: bytes
    def __init__(self, head: _Optional[_Union[SelectResponseHead, _Mapping]] = ..., elements: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SelectResponseHead(_message.Message):
    __slots__ = ("query_id", "n_fetches", "group_slots", "slot_width")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    N_FETCHES_FIELD_NUMBER: _ClassVar[int]
    GROUP_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    query_id: bytes
    n_fetches: int
    group_slots: int
    slot_width: int
    def __init__(self, query_id: _Optional[bytes] = ..., n_fetches: _Optional[int] = ..., group_slots: _Optional[int] = ..., slot_width: _Optional[int] = ...) -> None: ...

class ReadObjectRequest(_message.Message):
    __slots__ = ("name", "offset", "n_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    N_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    offset: int
    n_bytes: int
    def __init__(self, name: _Optional[bytes] = ..., offset: _Optional[int] = ..., n_bytes: _Optional[int] = ...) -> None: ...

class ReadObjectResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class GetRenewalRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRenewalResponse(_message.Message):
    __slots__ = ("renewal",)
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    renewal: bytes
    def __init__(self, renewal: _Optional[bytes] = ...) -> None: ...
