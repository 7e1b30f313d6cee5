"""Attributes, the labels that stand for them, and numbers bit by bit (steps 11.1.3 to 11.1.8)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from mksearch.access.tokens import KEYWORDS, Token, quote, refuse, scan
from mksearch.codec import ByteReader, encode_varint
from mksearch.errors import FormatError, PolicyError
from mksearch.params import ATTRIBUTE_BYTES_MAX, ATTRIBUTES_MAX, EPOCH_MAX, NUMBER_BITS

__all__ = [
    "Attribute",
    "Formula",
    "Label",
    "Threshold",
    "attribute_of",
    "compare",
    "epoch_label",
    "epoch_of",
    "is_epoch",
    "key_labels",
    "number_of",
    "parse_attribute",
    "require_labels",
    "show_label",
]

#: What a row of a span program and a component of a key are named by: bytes, public.
Label = bytes

_ATTRIBUTE, _BIT, _EPOCH = 1, 2, 3
_EPOCH_BYTES = 8
_NUMBER_MAX = (1 << NUMBER_BITS) - 1
_NUMBER_DIGITS = len(str(_NUMBER_MAX))


@dataclass(frozen=True, slots=True)
class Threshold:
    """``k`` of the children: AND is all of them, OR is one."""

    k: int
    children: tuple[Formula, ...]


#: An access structure over labels, all comparisons written out.
Formula = Label | Threshold


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an owner says of a user: a name, with or without a value.

    Attributes:
        name: not empty.
        value: "" if it has none.
        is_number: whether comparisons see it: an unquoted whole number below 2**32.
    """

    name: str
    value: str
    is_number: bool

    @property
    def label(self) -> Label:
        """Label of the attribute itself."""
        return _labelled(_ATTRIBUTE, self.name) + self.value.encode()

    @property
    def number(self) -> int:
        """The value as a number; only where ``is_number``."""
        return int(self.value)

    def __str__(self) -> str:
        if not self.value:
            return quote(self.name)
        looks_like_number = number_of(self.value) is not None
        value = f'"{self.value}"' if looks_like_number and not self.is_number else None
        return f"{quote(self.name)}:{value or quote(self.value, is_value=True)}"


def parse_attribute(text: str) -> Attribute:
    """Parse one attribute as an owner types it, such as ``role:analyst`` or ``clearance:5``.

    Args:
        text: the attribute in the language of policies, blanks around it allowed.

    Raises:
        PolicyError: it is not one attribute.
    """
    tokens = scan(text)
    token = next(tokens)
    attribute = attribute_of(token)
    rest = next(tokens)
    if rest.kind != "end":
        raise refuse(f"one attribute is expected, and '{rest.text}' follows", rest.position)
    return attribute


def attribute_of(token: Token) -> Attribute:
    """Return the attribute that a token is.

    Raises:
        PolicyError: it is another kind of token.
    """
    if token.kind != "word":
        cure = ""
        if token.kind in KEYWORDS or token.kind == "digits":
            cure = f'if it is meant as an attribute, quote it: "{token.text}"'
        found = f"'{token.text}'" if token.text else "the end"
        raise refuse(f"an attribute is expected, not {found},", token.position, cure)
    is_number = not token.is_quoted and number_of(token.value) is not None
    return Attribute(token.name, token.value, is_number)


def number_of(text: str) -> int | None:
    """Return the number that ``text`` is the one way to write, or None."""
    if not (text.isascii() and text.isdigit()) or len(text) > _NUMBER_DIGITS:
        return None
    number = int(text)
    return number if number <= _NUMBER_MAX and str(number) == text else None


# --- labels ---------------------------------------------------------------------------------------


def _labelled(kind: int, name: str) -> bytes:
    encoded = name.encode()
    return bytes([kind]) + encode_varint(len(encoded)) + encoded


def _bit_label(name: str, index: int, bit: int) -> Label:
    return _labelled(_BIT, name) + bytes([index, bit])


def epoch_label(epoch: int) -> Label:
    """Return the label of an epoch: 9 bytes.

    Raises:
        PolicyError: the epoch is not in 1..2**64-1.
    """
    if not 1 <= epoch <= EPOCH_MAX:
        raise PolicyError(f"epoch {epoch} is not in 1..{EPOCH_MAX}")
    return bytes([_EPOCH]) + epoch.to_bytes(_EPOCH_BYTES, "big")


def key_labels(attributes: Iterable[Attribute], epoch: int) -> frozenset[Label]:
    """Return the labels of a key: what its holder can be qualified by.

    Args:
        attributes: 1..64 different ones.
        epoch: from 1.

    Raises:
        PolicyError: too few or many, two numbers of one name, or the epoch is out of range.
    """
    labels = {epoch_label(epoch)}
    numbers: dict[str, int] = {}
    distinct = dict.fromkeys(attributes)
    if not 1 <= len(distinct) <= ATTRIBUTES_MAX:
        raise PolicyError(f"a key has 1 to {ATTRIBUTES_MAX} attributes, not {len(distinct)}")
    for attribute in distinct:
        labels.add(attribute.label)
        if not attribute.is_number:
            continue
        name, number = attribute.name, attribute.number
        if numbers.setdefault(name, number) != number:
            raise PolicyError(
                f"{quote(name)} has the numbers {numbers[name]} and {number}, and a comparison "
                "would take bits of both",
                cure=f'quote what is not to be compared: {quote(name)}:"{number}"',
            )
        bits = range(NUMBER_BITS)
        labels.update(_bit_label(name, index, number >> index & 1) for index in bits)
    return frozenset(labels)


def compare(name: str, sign: str, number: int) -> Formula:
    """Return the access structure of a comparison, over bits (step 11.1.5).

    Args:
        name: of the attribute.
        sign: ``>= > <= < == =``.
        number: 0..2**32-1.

    Raises:
        PolicyError: no number satisfies it.
    """
    if sign in {"=", "=="}:
        return Attribute(name, str(number), is_number=True).label
    bound = number + {">": 1, "<": -1}.get(sign, 0)
    if not 0 <= bound <= _NUMBER_MAX:
        raise PolicyError(
            f"no number satisfies {quote(name)} {sign} {number}",
            cure=f"numbers are 0..{_NUMBER_MAX}",
        )
    if sign.startswith("<"):
        return _at_least(name, _NUMBER_MAX - bound, one=0)
    return _at_least(name, bound, one=1)


def _at_least(name: str, bound: int, one: int) -> Formula:
    """Return "the number is at least ``bound``"; with ``one`` 0, of the number's complement."""
    if not bound:
        top = NUMBER_BITS - 1
        return Threshold(1, (_bit_label(name, top, one), _bit_label(name, top, 1 - one)))
    lowest = (bound & -bound).bit_length() - 1
    formula: Formula = _bit_label(name, lowest, one)
    for index in range(lowest + 1, NUMBER_BITS):
        k = 2 if bound >> index & 1 else 1
        formula = Threshold(k, (_bit_label(name, index, one), formula))
    return formula


def require_labels(labels: Iterable[Label], what: str) -> frozenset[Label]:
    """Return labels after proving that a key can have them: one epoch and something else.

    Raises:
        FormatError: they are not of this form.
    """
    found = frozenset(labels)
    n_epochs = sum(_kind_of(label, what) == _EPOCH for label in found)
    if n_epochs != 1 or len(found) < 2:
        raise FormatError(f"{what} has {n_epochs} epochs and {len(found) - n_epochs} other labels")
    return found


def is_epoch(label: Label) -> bool:
    """Tell whether a label is that of an epoch."""
    return label[0] == _EPOCH


def epoch_of(labels: Iterable[Label]) -> int:
    """Return the epoch of the labels of a key."""
    return int.from_bytes(next(filter(is_epoch, labels))[1:], "big")


def show_label(label: Label) -> str:
    """Return what a label says, for people.

    Raises:
        FormatError: it is none.
    """
    if _kind_of(label, "a label") == _EPOCH:
        return f"epoch {epoch_of([label])}"
    reader = ByteReader(label, "a label")
    kind, name = reader.unsigned(1), reader.text()
    if kind == _BIT:
        return f"bit {label[-2]} of {quote(name)} is {label[-1]}"
    value = label[reader.offset :].decode()
    return str(Attribute(name, value, number_of(value) is not None))


def _kind_of(label: Label, what: str) -> int:
    """Return the kind of a label after proving that it is one."""
    reader = ByteReader(label, f"a label of {what}")
    kind = reader.unsigned(1)
    if kind == _EPOCH:
        if not reader.unsigned(_EPOCH_BYTES):
            raise FormatError(f"{what} is of epoch 0")
        reader.finish()
        return kind
    if kind not in {_ATTRIBUTE, _BIT}:
        raise FormatError(f"{what} has a label of kind {kind}")
    name = reader.text()
    rest = reader.take(len(label) - reader.offset)
    if kind == _BIT:
        if len(rest) != 2 or rest[0] >= NUMBER_BITS or rest[1] > 1:
            raise FormatError(f"{what} has a bit that is none")
        rest = b""
    _require_parts(name, rest, what)
    return kind


def _require_parts(name: str, value: bytes, what: str) -> None:
    sizes = len(name.encode()), len(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{what} has a value that is not UTF-8") from None
    is_normal = unicodedata.is_normalized("NFC", name) and unicodedata.is_normalized("NFC", text)
    if not name or max(sizes) > ATTRIBUTE_BYTES_MAX or not is_normal:
        raise FormatError(f"{what} has an attribute that cannot be typed")
