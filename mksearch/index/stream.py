"""Sealed streams: chunked authenticated encryption of blobs and sections (protocol, section 6)."""

from __future__ import annotations

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.crypto import labels
from mksearch.crypto.aead import TAG_BYTES, Aead
from mksearch.crypto.kdf import derive
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.params import CHUNK_BYTES, SALT_BYTES

__all__ = ["KINDS", "open_stream", "padme", "seal_stream", "sealed_size"]

MAGIC = b"MKSTREAM"
FORMAT = 1
#: blob: a whole document; the others: sections of the manifest.
KINDS = ("blob", "dictionary", "lookup", "catalogue")
_LENGTH_BYTES = 8


def padme(n_bytes: int) -> int:
    """Return the padded size of ``n_bytes`` bytes: at most 12 % more, log log n bits leaked.

    Source: Nikitin et al., Reducing Metadata Leakage from Encrypted Files and Communication with
    PURBs (PETS 2019), algorithm 1.
    """
    if n_bytes < 2:
        return n_bytes
    exponent = n_bytes.bit_length() - 1
    step = 1 << max(0, exponent - exponent.bit_length())
    return -(-n_bytes // step) * step


def sealed_size(n_content: int) -> int:
    """Return the size of the file that `seal_stream` makes of ``n_content`` bytes."""
    n_padded = padme(_LENGTH_BYTES + n_content)
    n_chunks = -(-n_padded // CHUNK_BYTES)
    return ENVELOPE_BYTES + SALT_BYTES + n_padded + TAG_BYTES * n_chunks


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if last else b"\0")


def _cipher(key: SecretKey, kind: str, salt: bytes, collection: bytes) -> tuple[Aead, bytes]:
    aead = Aead(derive(key, labels.STREAM_KEY + kind.encode(), salt))
    return aead, labels.STREAM + b"\0" + kind.encode() + b"\0" + collection


def seal_stream(
    key: SecretKey, kind: str, collection: bytes, content: bytes, random: RandomSource
) -> bytes:
    """Seal ``content`` as a file whose size shows only its Padme class.

    Args:
        key: key of the blob or section.
        kind: one of ``KINDS``.
        collection: 16 bytes.
        content: the secret bytes.
        random: source of the stream's salt.

    Returns:
        the whole file; stored under its SHA-256.
    """
    salt = random.bytes(SALT_BYTES)
    aead, associated = _cipher(key, kind, salt, collection)
    n_padded = padme(_LENGTH_BYTES + len(content))
    plaintext = (len(content).to_bytes(_LENGTH_BYTES, "big") + content).ljust(n_padded, b"\0")
    pieces = [write_envelope(MAGIC, FORMAT), salt]
    for number, start in enumerate(range(0, n_padded, CHUNK_BYTES)):
        stop = start + CHUNK_BYTES
        nonce = _nonce(number, last=stop >= n_padded)
        pieces.append(aead.seal(nonce, plaintext[start:stop], associated))
    return b"".join(pieces)


def open_stream(key: SecretKey, kind: str, collection: bytes, data: bytes) -> bytes:
    """Open a sealed file: authenticate every chunk, their order and the end.

    Args:
        key: key of the blob or section.
        kind: one of ``KINDS``.
        collection: 16 bytes.
        data: the whole file; untrusted.

    Returns:
        the content, without padding.

    Raises:
        FormatError: damaged framing or padding.
        UnsupportedVersion: another format version.
        RecordRefused: a chunk does not open.
    """
    what = f"a sealed {kind}"
    read_envelope(data, MAGIC, FORMAT, what)
    start = ENVELOPE_BYTES + SALT_BYTES
    size = CHUNK_BYTES + TAG_BYTES
    # No chunk is empty, so the last one is longer than its tag.
    if (len(data) - start - 1) % size < TAG_BYTES or len(data) <= start:
        raise FormatError(f"{what} of {len(data)} bytes is truncated")
    aead, associated = _cipher(key, kind, data[ENVELOPE_BYTES:start], collection)
    pieces = []
    for number, at in enumerate(range(start, len(data), size)):
        nonce = _nonce(number, last=at + size >= len(data))
        pieces.append(
            aead.open(nonce, data[at : at + size], associated, f"chunk {number} of {what}")
        )
    plaintext = b"".join(pieces)
    length = int.from_bytes(plaintext[:_LENGTH_BYTES], "big")
    content = plaintext[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if len(plaintext) != padme(_LENGTH_BYTES + length) or plaintext[8 + length :].strip(b"\0"):
        raise FormatError(f"{what} is not padded as the format says")
    return content
