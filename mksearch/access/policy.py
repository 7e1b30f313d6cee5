"""The language of policies: who may open, as people write it (docs/protocol.md, section 11.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mksearch.access.attributes import (
    Attribute,
    Formula,
    Label,
    Threshold,
    attribute_of,
    compare,
    epoch_label,
    key_labels,
    number_of,
)
from mksearch.access.tokens import SIGNS, Token, quote, refuse, scan
from mksearch.errors import FormatError, PolicyError
from mksearch.params import NUMBER_BITS, POLICY_DEPTH_MAX, POLICY_LEAVES_MAX

__all__ = ["Comparison", "Gate", "Node", "Policy", "is_qualified", "parse_policy", "qualifies"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``name sign number``, such as ``clearance >= 3``."""

    name: str
    sign: str
    number: int

    def __str__(self) -> str:
        return f"{quote(self.name)} {self.sign} {self.number}"


@dataclass(frozen=True, slots=True)
class Gate:
    """``k`` of the children; ``word`` is how it was written: AND, OR, OF."""

    word: str
    k: int
    children: tuple[Node, ...]

    def __str__(self) -> str:
        if self.word == "OF":
            return f"{self.k} OF ({', '.join(map(str, self.children))})"
        parts = (
            f"({child})" if isinstance(child, Gate) and child.word != "OF" else str(child)
            for child in self.children
        )
        return f" {self.word} ".join(parts)


Node = Attribute | Comparison | Gate


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed policy.

    Attributes:
        data: UTF-8 bytes as typed: what is signed, and what keys are derived from.
        root: what was read.
        formula: the same over labels, with comparisons written out.
    """

    data: bytes
    root: Node = field(compare=False)
    formula: Formula = field(compare=False)

    @classmethod
    def decode(cls, data: bytes) -> Policy:
        """Read the policy bytes of a manifest.

        Raises:
            FormatError: they are not a policy.
        """
        try:
            return parse_policy(data.decode())
        except UnicodeDecodeError:
            raise FormatError("a policy is not UTF-8") from None
        except PolicyError as error:
            raise FormatError(f"a policy cannot be read: {error.message}") from None

    def at_epoch(self, epoch: int) -> Threshold:
        """Return the access structure of this policy in an epoch: policy AND epoch.

        Raises:
            PolicyError: the epoch is not in 1..2**64-1.
        """
        return Threshold(2, (self.formula, epoch_label(epoch)))

    def __str__(self) -> str:
        """Return the policy as it was understood, for people; never to be signed or hashed."""
        return str(self.root)


def parse_policy(text: str) -> Policy:
    """Parse a policy as people type it.

    Args:
        text: such as ``(role:analyst AND dept:finance) OR 2 OF (a, b, c)``; 1..4096 bytes of UTF-8
            in NFC.

    Raises:
        PolicyError: it is not of the language; ``position`` says where.
    """
    root = _Parser(scan(text)).policy()
    formula, n_leaves = _formula(root)
    if n_leaves > POLICY_LEAVES_MAX:
        raise PolicyError(
            f"the policy has {n_leaves} leaves, comparisons written out (at most "
            f"{POLICY_LEAVES_MAX})",
            cure="give one attribute to all who may, or compare with rounder numbers",
        )
    return Policy(text.encode(), root, formula)


def qualifies(policy: Policy, attributes: Iterable[Attribute]) -> bool:
    """Tell whether these attributes satisfy a policy, whatever the epoch.

    A question about words, for explaining; what opens or does not is decided by keys.

    Raises:
        PolicyError: no key can have these attributes.
    """
    return is_qualified(policy.formula, key_labels(attributes, 1))


def is_qualified(formula: Formula, labels: frozenset[Label]) -> bool:
    """Tell whether a set of labels satisfies an access structure."""
    if isinstance(formula, bytes):
        return formula in labels
    return sum(is_qualified(child, labels) for child in formula.children) >= formula.k


def _formula(node: Node) -> tuple[Formula, int]:
    """Return a node over labels, and its number of leaves."""
    if isinstance(node, Attribute):
        return node.label, 1
    if isinstance(node, Comparison):
        formula = compare(node.name, node.sign, node.number)
        return formula, sum(1 for _ in _leaves(formula))
    parts = [_formula(child) for child in node.children]
    return Threshold(node.k, tuple(part for part, _ in parts)), sum(n for _, n in parts)


def _leaves(formula: Formula) -> Iterator[Label]:
    if isinstance(formula, bytes):
        yield formula
    else:
        for child in formula.children:
            yield from _leaves(child)


def _misplaced(token: Token) -> PolicyError:
    cures = {
        ")": "it closes nothing",
        "not": "there is no NOT: a policy says who may, not who may not",
        ",": "commas stand between the operands of OF only",
        "of": "OF needs a count before it: 2 OF (a, b, c)",
    }
    cure = cures.get(token.kind, "AND or OR is missing before it")
    if token.kind in SIGNS:
        cure = "a comparison is name, sign, number: clearance >= 3"
    return refuse(f"'{token.text}' is not expected", token.position, cure)


class _Parser:
    """Recursive descent over one text; it goes no deeper than POLICY_DEPTH_MAX parentheses."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._token = next(tokens)
        self._depth = 0

    def policy(self) -> Node:
        root = self._either()
        if self._token.kind != "end":
            raise _misplaced(self._token)
        return root

    def _next(self) -> Token:
        """Return the token at hand and go on to the one behind it."""
        token = self._token
        if token.kind != "end":
            self._token = next(self._tokens)
        return token

    def _either(self) -> Node:
        return self._row("or", self._all)

    def _all(self) -> Node:
        return self._row("and", self._factor)

    def _row(self, keyword: str, operand: Callable[[], Node]) -> Node:
        children = [operand()]
        while self._token.kind == keyword:
            self._next()
            children.append(operand())
        if len(children) == 1:
            return children[0]
        k = len(children) if keyword == "and" else 1
        return Gate(keyword.upper(), k, tuple(children))

    def _factor(self) -> Node:
        token = self._next()
        if token.kind == "(":
            self._enter(token)
            inner = self._either()
            self._leave(token)
            return inner
        if token.kind == "digits" and self._token.kind == "of":
            return self._count(token)
        if token.kind == "not":
            raise _misplaced(token)
        attribute = attribute_of(token)
        if self._token.kind in SIGNS:
            return self._comparison(token)
        return attribute

    def _enter(self, token: Token) -> None:
        self._depth += 1
        if self._depth > POLICY_DEPTH_MAX:
            raise refuse(
                f"parentheses are nested more than {POLICY_DEPTH_MAX} deep", token.position
            )

    def _leave(self, opened: Token) -> None:
        if self._token.kind == "end":
            raise refuse("the parenthesis is not closed that opens", opened.position, "add a )")
        if self._token.kind != ")":
            raise _misplaced(self._token)
        self._next()
        self._depth -= 1

    def _count(self, count: Token) -> Node:
        of = self._next()
        opened = self._next()
        if opened.kind != "(":
            raise refuse("OF stands before parentheses", of.position, "write 2 OF (a, b, c)")
        self._enter(opened)
        children = [self._either()]
        while self._token.kind == ",":
            self._next()
            children.append(self._either())
        self._leave(opened)
        k = number_of(count.text)
        if k is None or not 1 <= k <= len(children):
            raise refuse(
                f"{count.text} OF {len(children)} operands cannot be counted",
                count.position,
                f"the count is 1..{len(children)}, without leading zeros",
            )
        return Gate("OF", k, tuple(children))

    def _comparison(self, token: Token) -> Comparison:
        sign, number = self._next(), self._next()
        if token.value:
            raise refuse(
                f"'{token.text}' has a value and cannot be compared",
                token.position,
                f"compare the name: {quote(token.name)} {sign.text} ..",
            )
        value = number_of(number.text) if number.kind == "digits" else None
        if value is None:
            raise refuse(
                f"'{sign.text}' compares with a whole number, not '{number.text}',",
                number.position,
                f"numbers are 0..{(1 << NUMBER_BITS) - 1}, without leading zeros or signs; "
                "for text write name:value",
            )
        try:
            compare(token.name, sign.kind, value)
        except PolicyError as error:
            raise refuse(error.message, token.position, error.cure) from None
        return Comparison(token.name, sign.kind, value)
