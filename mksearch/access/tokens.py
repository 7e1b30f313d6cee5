"""Cut the text of a policy into tokens; every character is accounted for (steps 11.1.1 to 11.1.3).

Errors name the character, counted from 1, at which the text stops being of the language.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from mksearch.errors import PolicyError
from mksearch.params import ATTRIBUTE_BYTES_MAX, POLICY_BYTES_MAX

__all__ = ["KEYWORDS", "SIGNS", "Token", "quote", "refuse", "scan"]

KEYWORDS = frozenset({"and", "or", "of", "not"})
SIGNS = (">=", "<=", "==", ">", "<", "=")
_BLANKS = " \t\n\r"
_SINGLE = "(),"
_BARE_SIGNS = frozenset("_-.+@/#%:")
_JOINERS = frozenset("\u200c\u200d")
_FORBIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DIGITS = frozenset("0123456789")
_RESERVED = "epoch"


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a policy.

    Attributes:
        kind: ``( ) ,``, a comparison sign, a keyword in lower case, ``digits``, ``word``, ``end``.
        position: its first character, from 1.
        text: as typed.
        name: of a word, not quoted any more.
        value: of a word, not quoted any more; "" if it has none.
        is_quoted: whether the value was typed in quotes.
    """

    kind: str
    position: int
    text: str
    name: str = ""
    value: str = ""
    is_quoted: bool = False


def refuse(what: str, position: int, cure: str = "") -> PolicyError:
    """Return the error for ``what`` met at character ``position``, from 1."""
    return PolicyError(f"{what} at character {position}", position=position, cure=cure)


def quote(part: str, *, is_value: bool = False) -> str:
    """Return a name or value as one can type it, in quotes where it needs them."""
    is_plain = all(map(_is_bare, part))
    if not is_value:
        is_plain = is_plain and ":" not in part and not _kind_of_bare(part)
    return part if is_plain else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown(char: str) -> str:
    """Return a character as a message can show it: itself, or its number if it is not visible."""
    is_visible = char.isprintable() and unicodedata.category(char)[0] != "M" and char != " "
    return f"'{char}'" if is_visible else f"U+{ord(char):04X}"


def _require_text(text: str) -> None:
    """Prove that ``text`` can be looked at: encodable, not empty, not too long, NFC.

    Raises:
        PolicyError: it is not.
    """
    # A character takes at least a byte: nothing long is ever encoded or normalised.
    n_bytes = len(text)
    if n_bytes <= POLICY_BYTES_MAX:
        try:
            n_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            char = _shown(text[error.start])
            raise refuse(f"{char} is half a character", error.start + 1) from None
    if not 1 <= n_bytes <= POLICY_BYTES_MAX:
        more = " or more" if len(text) > POLICY_BYTES_MAX else ""
        raise PolicyError(
            f"the text has {n_bytes} bytes{more} (need 1..{POLICY_BYTES_MAX})",
            cure="give one attribute to all who may" if n_bytes else "write who may: role:analyst",
        )
    if not unicodedata.is_normalized("NFC", text):
        normal = unicodedata.normalize("NFC", text)
        pairs = zip(text, normal, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(normal)))
        cure = "normalise it, or type it again"
        raise refuse("the text is not in Unicode's normal form C", first + 1, cure)


def scan(text: str) -> Iterator[Token]:
    """Yield the tokens of ``text``, the last one of kind ``end``; each character is read once.

    Raises:
        PolicyError: a character belongs to no token, or a name or value cannot be one.
    """
    _require_text(text)
    at = 0
    while at < len(text):
        char = text[at]
        if char in _BLANKS:
            at += 1
        elif char in _SINGLE:
            yield Token(char, at + 1, char)
            at += 1
        elif sign := next((sign for sign in SIGNS if text.startswith(sign, at)), ""):
            yield Token(sign, at + 1, sign)
            at += len(sign)
        elif char == '"' or _is_bare(char):
            token, at = _word(text, at)
            yield token
        else:
            raise _unknown(char, at)
    yield Token("end", len(text) + 1, "")


def _unknown(char: str, at: int) -> PolicyError:
    cures = {
        "!": "there is no 'not': a policy says who may, not who may not",
        "&": "write AND; quote the name or value if it is part of it",
        "|": "write OR; quote the name or value if it is part of it",
        "'": 'quotes are "',
    }
    cure = cures.get(char, 'put the name or value that holds it in quotes: "..."')
    return refuse(f"{_shown(char)} is not possible outside quotes", at + 1, cure)


def _is_bare(char: str) -> bool:
    return char in _BARE_SIGNS or unicodedata.category(char)[0] in "LMN"


def _bare_end(text: str, at: int) -> int:
    while at < len(text) and _is_bare(text[at]):
        at += 1
    return at


def _word(text: str, start: int) -> tuple[Token, int]:
    """Return the word that starts at index ``start``, and the index behind it."""
    is_quoted = False
    if text[start] == '"':
        name, at = _quoted(text, start)
        colon = text.startswith(":", at)
        value_at = at + 1
        at = _bare_end(text, value_at) if colon else at
        value = text[value_at:at] if colon else ""
    else:
        at = _bare_end(text, start)
        name, found, value = text[start:at].partition(":")
        colon, value_at = bool(found), start + len(name) + 1
        if not colon and (kind := _kind_of_bare(name)):
            _require_apart(text, at)
            return Token(kind, start + 1, name), at
    if colon and not value and text.startswith('"', at):
        value, at = _quoted(text, at)
        is_quoted = True
    _require_apart(text, at)
    _require_part(name, "name", start)
    if name.casefold() == _RESERVED:
        raise refuse(
            f"the name {_RESERVED} is reserved", start + 1, "leave it out: every key has an epoch"
        )
    if colon:
        _require_part(value, "value", value_at)
    return Token("word", start + 1, text[start:at], name, value, is_quoted), at


def _kind_of_bare(word: str) -> str:
    lower = word.lower() if word.isascii() else ""
    if lower in KEYWORDS:
        return lower
    return "digits" if set(word) <= _DIGITS else ""


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return what the quotes at index ``start`` hold, and the index behind them."""
    out: list[str] = []
    at = start + 1
    while at < len(text):
        char = text[at]
        if char == '"':
            return "".join(out), at + 1
        if char == "\\":
            at += 1
            char = text[at : at + 1]
            if char not in ('"', "\\"):
                raise refuse('a \\ in quotes stands before " or \\ only', at, "write \\\\")
        elif char not in _JOINERS and unicodedata.category(char) in _FORBIDDEN:
            raise refuse(f"{_shown(char)} is not possible", at + 1, "leave it out: it is not seen")
        out.append(char)
        at += 1
    raise refuse("the quotes are not closed that open", start + 1, 'end the name or value with "')


def _require_apart(text: str, at: int) -> None:
    if at < len(text) and (text[at] == '"' or _is_bare(text[at])):
        raise refuse(
            "quotes touch a word", at + 1, 'quote a whole name or a whole value: name:"value"'
        )


def _require_part(part: str, what: str, at: int) -> None:
    n_bytes = len(part.encode())
    if not part:
        raise refuse(f"an attribute has an empty {what}", at + 1, "write name:value without blanks")
    if n_bytes > ATTRIBUTE_BYTES_MAX:
        raise refuse(f"a {what} has {n_bytes} bytes (at most {ATTRIBUTE_BYTES_MAX})", at + 1)
    if unicodedata.category(part[0])[0] == "M":
        raise refuse(f"a {what} begins with the mark {_shown(part[0])}", at + 1)
