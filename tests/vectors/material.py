"""What vectors are made of and written with: seeds, sample documents, JSON.  No cryptography."""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BAD = HERE / "bad"
FROZEN = HERE / "frozen"

Json = dict[str, Any]
"""A vector file, or a part of one."""

_LINE = 100


def seed(label: str) -> bytes:
    """Return the 32 bytes that stand for a secret, salt or seed called `label`."""
    return hashlib.sha256(f"mksearch test vectors: {label}".encode()).digest()


MASTER = seed("master")
COLLECTION = seed("collection")[:16]
EPOCH = 3
POLICY = b"role:analyst"

OWNER: Json = {
    "master": MASTER.hex(),
    "collection": COLLECTION.hex(),
    "epoch": EPOCH,
    "policy": POLICY.hex(),
}
"""From what every key of these files is derived."""


def content_of(size: int) -> bytes:
    """Return `size` bytes of content that any implementation can make: (167 i + 13) mod 251."""
    period = bytes((167 * i + 13) % 251 for i in range(251))
    return (period * (size // 251 + 1))[:size]


def draws(label: str, n: int) -> list[int]:
    """Return `n` numbers below 2^32 that depend on `label` alone."""
    out: list[int] = []
    for i in range(-(-n // 8)):
        digest = hashlib.sha256(seed(label) + i.to_bytes(4, "big")).digest()
        out += [int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4)]
    return out[:n]


def shuffled(label: str, n: int) -> list[int]:
    """Return 0..n-1 in an order that depends on `label` alone."""
    ranks = draws(label, n)
    return sorted(range(n), key=lambda i: (ranks[i], i))


# --- sample documents ----------------------------------------------------------------------------

WORDS = ("слово", "検索", "été", "a", "zebra", *(f"w{i:03}" for i in range(160)))
"""Words that a plain analyzer leaves as they are; the first ones are drawn most often."""


def sample_documents(label: str, n: int, *, spill: bool = True) -> list[Json]:
    """Return `n` documents with their terms: equal ones, an empty one, long records among them."""
    documents: list[Json] = []
    for number in range(n):
        numbers = iter(draws(f"{label}/{number}", 400))
        length = 3 + next(numbers) % 30
        terms = [WORDS[_skewed(next(numbers), next(numbers))] for _ in range(length)]
        snippet = "snippet " * (next(numbers) % 5)
        documents.append(
            {"id": f"doc-{number:02}", "title": f"Title {number}", "snippet": snippet}
            | {"terms": terms}
        )
    if n > 4:
        # The same term frequencies: one row; the ids are not in the order of the documents.
        documents[n - 1] |= {"id": "ärger", "terms": documents[0]["terms"][::-1]}
        documents[n - 2] |= {"id": "Zwilling", "terms": list(documents[0]["terms"])}
        documents[n - 3] |= {"id": "empty", "title": "", "snippet": "", "terms": []}
    if spill and n > 1:
        documents[1] |= {"title": "Spilt", "snippet": "long snippet " * 90}
    return documents


def _skewed(one: int, two: int) -> int:
    return min(one % len(WORDS), two % len(WORDS))


# --- writing and reading -------------------------------------------------------------------------


def pack(values: Iterable[int]) -> list[str]:
    """Return 16-bit numbers as little-endian bytes in base64, in lines."""
    return pack_bytes(b"".join(value.to_bytes(2, "little") for value in values))


def pack_bytes(data: bytes) -> list[str]:
    """Return bytes in base64, in lines."""
    return textwrap.wrap(base64.b64encode(data).decode(), 96)


def unpack_bytes(lines: Sequence[str]) -> bytes:
    """Undo `pack_bytes`."""
    return base64.b64decode("".join(lines), validate=True)


def unpack(lines: Sequence[str]) -> list[int]:
    """Undo `pack`."""
    data = unpack_bytes(lines)
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


def unpack_table(lines: Sequence[str], width: int) -> list[list[int]]:
    """Return packed numbers as rows of `width`."""
    flat = unpack(lines)
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def render(value: Any) -> str:
    """Return a vector file: ASCII, one item a line where a line would be long."""
    return _render(value, 0) + "\n"


def _render(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=True)
    if depth and len(flat) + 2 * depth <= _LINE:
        return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        lines = [
            f"{pad}{json.dumps(key)}: {_render(item, depth + 1)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{end}}}"
    if isinstance(value, list):
        if not all(isinstance(item, (int, str)) for item in value):
            lines = [f"{pad}{_render(item, depth + 1)}" for item in value]
            return "[\n" + ",\n".join(lines) + f"\n{end}]"
        return "[\n" + ",\n".join(_filled(value, pad)) + f"\n{end}]"
    return flat


def _filled(values: Sequence[int | str], pad: str) -> Iterator[str]:
    line = ""
    for item in map(json.dumps, values):
        if line and len(pad) + len(line) + 2 + len(item) >= _LINE:
            yield pad + line
            line = ""
        line += f", {item}" if line else item
    yield pad + line


def load(name: str, folder: Path = HERE) -> Json:
    """Return the committed vector file `name`.json."""
    loaded: Json = json.loads((folder / f"{name}.json").read_bytes())
    return loaded


def bad_names() -> Iterator[str]:
    """Yield the names of the committed bad vectors."""
    for path in sorted(BAD.glob("*.json")):
        yield path.stem


def case_of(file: Json, name: str) -> Json:
    """Return the case called `name` of a vector file."""
    found: Json = next(case for case in file["cases"] if case["name"] == name)
    return found
