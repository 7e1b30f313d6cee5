"""Policies, labels and span programs (sections 11.1, 11.2)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from .codec import encode_varint, u64
from .refused import Refused, require

R = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001

Tree = bytes | tuple[int, list["Tree"]]
"""A label, or (k, children)."""


class Token(NamedTuple):
    """A piece of a policy: "(", ")", ",", "sign", "keyword", "digits" or "word"."""

    kind: str
    text: str
    value: str = ""
    is_quoted: bool = False


def decode_text(data: bytes) -> str:
    """Return the text of a policy; refuse at 11.1.1."""
    require(1 <= len(data) <= 4096, "11.1.1", f"{len(data)} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refused("11.1.1", "not UTF-8") from error
    require(unicodedata.normalize("NFC", text) == text, "11.1.1", "not NFC")
    return text


def _is_bare(char: str) -> bool:
    return char in "_-.+@/#%:" or unicodedata.category(char)[0] in ("L", "M", "N")


def is_plain(part: str) -> bool:
    """Tell whether a name or value has nothing in it that needs quotes."""
    return all(map(_is_bare, part))


def _may_be_quoted(char: str) -> bool:
    unseen = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return char in "\u200c\u200d" or not unseen


def tokenize(text: str) -> list[Token]:
    """Cut a text; refuse at 11.1.2 and 11.1.3."""
    out: list[Token] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\n\r":
            at += 1
        elif text[at] in "(),":
            out.append(Token(text[at], text[at]))
            at += 1
        elif text[at] in "<>=":
            size = 2 if text[at : at + 2] in ("<=", ">=", "==") else 1
            out.append(Token("sign", text[at : at + size]))
            at += size
        else:
            pieces, at = _pieces(text, at)
            out.append(_word(pieces))
    return out


def _pieces(text: str, at: int) -> tuple[list[tuple[str, str]], int]:
    """Return what is bare and what is quoted, without a gap, and the place behind it."""
    pieces: list[tuple[str, str]] = []
    while at < len(text) and (text[at] == '"' or _is_bare(text[at])):
        content = ""
        if text[at] != '"':
            while at < len(text) and _is_bare(text[at]):
                content += text[at]
                at += 1
            pieces.append(("bare", content))
            continue
        at += 1
        while text[at : at + 1] != '"':
            require(at < len(text), "11.1.2", "quotes that are not closed")
            if text[at] == "\\":
                at += 1
                require(text[at : at + 1] in ('"', "\\"), "11.1.2", "a bad escape")
            else:
                require(_may_be_quoted(text[at]), "11.1.2", "a character that is not seen")
            content += text[at]
            at += 1
        at += 1
        pieces.append(("quoted", content))
    require(bool(pieces), "11.1.2", "a character of no token")
    return pieces, at


def _word(pieces: list[tuple[str, str]]) -> Token:
    kinds = [kind for kind, _ in pieces]
    texts = [text for _, text in pieces]
    if kinds == ["bare"] and ":" not in texts[0]:
        if texts[0].isascii() and texts[0].lower() in ("and", "or", "of", "not"):
            return Token("keyword", texts[0].lower())
        if texts[0].isascii() and texts[0].isdigit():
            return Token("digits", texts[0])
        return _attribute(texts[0], None, is_quoted=False)
    if kinds == ["bare"]:
        name, _, value = texts[0].partition(":")
        return _attribute(name, value, is_quoted=False)
    if kinds == ["quoted"]:
        return _attribute(texts[0], None, is_quoted=False)
    if kinds == ["quoted", "bare"] and texts[1].startswith(":"):
        return _attribute(texts[0], texts[1][1:], is_quoted=False)
    if kinds == ["bare", "quoted"] and texts[0].find(":") == len(texts[0]) - 1:
        return _attribute(texts[0][:-1], texts[1], is_quoted=True)
    if kinds == ["quoted", "bare", "quoted"] and texts[1] == ":":
        return _attribute(texts[0], texts[2], is_quoted=True)
    raise Refused("11.1.2", "quotes that touch a word")


def _attribute(name: str, value: str | None, *, is_quoted: bool) -> Token:
    for part in [name] if value is None else [name, value]:
        require(bool(part), "11.1.3", "an empty name or value")
        require(len(part.encode()) <= 256, "11.1.3", "a long name or value")
        require(unicodedata.category(part[0])[0] != "M", "11.1.3", "a mark in front")
    require(name.casefold() != "epoch", "11.1.3", "the name is reserved")
    return Token("word", name, value or "", is_quoted)


# Labels


def attribute_label(name: str, value: str) -> bytes:
    """Return the label of an attribute; value "" if it has none."""
    return b"\x01" + encode_varint(len(name.encode())) + name.encode() + value.encode()


def bit_label(name: str, i: int, b: int) -> bytes:
    """Return the label of "bit i of number name is b"."""
    return b"\x02" + encode_varint(len(name.encode())) + name.encode() + bytes([i, b])


def epoch_label(epoch: int) -> bytes:
    """Return the label of an epoch."""
    require(1 <= epoch < 1 << 64, "11.1.7", "an epoch out of range")
    return b"\x03" + u64(epoch)


def number(text: str) -> int | None:
    """Return the number that a text is, in the sense of step 11.1.3, or None."""
    if not text or set(text) - set("0123456789") or len(text) > 10 or str(int(text)) != text:
        return None
    return int(text) if int(text) < 1 << 32 else None


def key_labels(texts: Sequence[str], epoch: int) -> list[bytes]:
    """Return the labels of a key, ascending; refuse at 11.1.7."""
    labels = {epoch_label(epoch)}
    numbers: dict[str, int] = {}
    typed = set()
    for text in texts:
        [token] = tokenize(decode_text(text.encode()))
        require(token.kind == "word", "11.1.5", "not an attribute")
        value = None if token.is_quoted else number(token.value)
        typed.add((token.text, token.value, value is None))
        labels.add(attribute_label(token.text, token.value))
        if value is not None:
            require(numbers.setdefault(token.text, value) == value, "11.1.7", "two numbers")
            labels |= {bit_label(token.text, i, value >> i & 1) for i in range(32)}
    require(1 <= len(typed) <= 64, "11.1.7", f"{len(typed)} attributes")
    return sorted(labels)


# Grammar: a token list is split at its weakest operator outside parentheses.


def parse(data: bytes) -> Tree:
    """Return what policy bytes mean; refuse at 11.1.1 to 11.1.6."""
    tree = _either(tokenize(decode_text(data)), 0)
    require(count_leaves(tree) <= 256, "11.1.6", "too many leaves")
    return tree


def count_leaves(tree: Tree) -> int:
    """Return the number of leaves."""
    return 1 if isinstance(tree, bytes) else sum(map(count_leaves, tree[1]))


def _split(tokens: list[Token], kind: str, text: str) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.kind == "(") - (token.kind == ")")
        require(depth >= 0, "11.1.5", "a parenthesis too many")
        if depth == 0 and token.kind == kind and token.text == text:
            parts.append([])
        else:
            parts[-1].append(token)
    require(depth == 0, "11.1.5", "a parenthesis too few")
    return parts


def _either(tokens: list[Token], depth: int) -> Tree:
    require(depth <= 32, "11.1.6", "nested too deep")
    terms = [_all(part, depth) for part in _split(tokens, "keyword", "or")]
    return terms[0] if len(terms) == 1 else (1, terms)


def _all(tokens: list[Token], depth: int) -> Tree:
    factors = [_factor(part, depth) for part in _split(tokens, "keyword", "and")]
    return factors[0] if len(factors) == 1 else (len(factors), factors)


def _factor(tokens: list[Token], depth: int) -> Tree:
    kinds = [token.kind for token in tokens]
    if kinds == ["word"]:
        return attribute_label(tokens[0].text, tokens[0].value)
    if len(kinds) == 3 and kinds[:2] == ["word", "sign"] and not tokens[0].value:
        bound = number(tokens[2].text) if kinds[2] == "digits" else None
        if bound is None:
            raise Refused("11.1.4", "compared with no number")
        return compare(tokens[0].text, tokens[1].text, bound)
    if kinds[:1] == ["("] and kinds[-1] == ")":
        return _either(tokens[1:-1], depth + 1)
    is_count = kinds[:3] == ["digits", "keyword", "("] and kinds[-1] == ")"
    if is_count and tokens[1].text == "of":
        children = [_either(part, depth + 1) for part in _split(tokens[3:-1], ",", ",")]
        k = number(tokens[0].text)
        if k is None or not 1 <= k <= len(children):
            raise Refused("11.1.5", "a count out of range")
        return k, children
    raise Refused("11.1.5", "not of the grammar")


def compare(name: str, sign: str, k: int) -> Tree:
    """Return a comparison over bits (step 11.1.5)."""
    if sign in ("=", "=="):
        return attribute_label(name, str(k))
    k += {">": 1, "<": -1}.get(sign, 0)
    require(0 <= k < 1 << 32, "11.1.4", "no number satisfies it")
    one = 0 if sign[0] == "<" else 1
    if not one:
        k = (1 << 32) - 1 - k
    if k == 0:
        return 1, [bit_label(name, 31, one), bit_label(name, 31, 1 - one)]
    z = 0
    while not k >> z & 1:
        z += 1
    tree: Tree = bit_label(name, z, one)
    for i in range(z + 1, 32):
        tree = (2 if k >> i & 1 else 1), [bit_label(name, i, one), tree]
    return tree


def is_satisfied(tree: Tree, labels: set[bytes]) -> bool:
    """Tell whether labels satisfy a tree."""
    if isinstance(tree, bytes):
        return tree in labels
    k, children = tree
    return len([child for child in children if is_satisfied(child, labels)]) >= k


# Span programs


def span_program(policy: bytes, epoch: int) -> tuple[list[list[int]], list[bytes]]:
    """Return (matrix, row labels) of (policy, epoch), every row with all columns."""
    tree: Tree = (2, [parse(policy), epoch_label(epoch)])
    vectors: list[list[int]] = []
    labels: list[bytes] = []
    n_columns = 1

    def walk(node: Tree, vector: list[int]) -> None:
        nonlocal n_columns
        if isinstance(node, bytes):
            vectors.append(vector)
            labels.append(node)
            return
        k, children = node
        padded = vector + [0] * (n_columns - len(vector))
        n_columns += k - 1
        for j, child in enumerate(children, 1):
            walk(child, padded + [pow(j, m, R) for m in range(1, k)])

    walk(tree, [1])
    return [vector + [0] * (n_columns - len(vector)) for vector in vectors], labels


def solve(rows: Sequence[Sequence[int]], n_columns: int) -> list[int] | None:
    """Return weights of rows whose sum is (1, 0, .., 0), or None: Gauss and Jordan."""
    width = len(rows)
    table = [[row[c] % R for row in rows] + [int(c == 0)] for c in range(n_columns)]
    done: list[int] = []
    for unknown in range(width):
        rest = [i for i in range(len(done), n_columns) if table[i][unknown]]
        if not rest:
            continue
        top = len(done)
        table[top], table[rest[0]] = table[rest[0]], table[top]
        scale = pow(table[top][unknown], R - 2, R)
        table[top] = [value * scale % R for value in table[top]]
        for i in range(n_columns):
            if i != top:
                f = table[i][unknown]
                table[i] = [(a - f * b) % R for a, b in zip(table[i], table[top], strict=True)]
        done.append(unknown)
    if any(line[-1] for line in table[len(done) :]):
        return None
    weights = [0] * width
    for i, unknown in enumerate(done):
        weights[unknown] = table[i][-1]
    return weights
