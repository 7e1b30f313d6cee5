"""Records fetched by selectors (section 8.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from .field import P, interpolate
from .keystream import TAG_PAD, TAG_WEIGHT, word
from .records import N_TAGS
from .refused import Refused, require

CLASSES = (4, 8, 16, 32, 64)
FIRST = 16
SELECTOR_BYTES_MAX = 1 << 26

Table = list[list[int]]
"""A row for each fetch: selectors, or the elements of a group one after another."""


def cut(n_slots: int, width: int) -> tuple[int, int]:
    """Return how many groups there are, and the slots of one (step 8.1.1)."""
    size = 1
    while (size + 1) ** 2 <= n_slots // width:
        size += 1
    return -(-n_slots // size), size


def fetches(n_wanted: int, is_first: bool) -> list[int]:
    """Return the fetches of each request of a round (step 8.1.2)."""
    left = max(n_wanted, FIRST if is_first else 1)
    out = []
    while left > 0:
        out.append(min(size for size in CLASSES if size >= min(left, CLASSES[-1])))
        left -= out[-1]
    return out


def one_hot(groups: Sequence[int], n_groups: int) -> Table:
    """Return the selectors of fetches (step 8.1.3)."""
    return [[int(g == wanted) for g in range(n_groups)] for wanted in groups]


def require_selectors(selectors: Sequence[Sequence[int]], n_groups: int) -> None:
    """Refuse, as a server does, what is no share of selectors (step 8.1.4)."""
    require(len(selectors) in CLASSES, "8.1.4", f"{len(selectors)} fetches")
    require(2 * len(selectors) * n_groups <= SELECTOR_BYTES_MAX, "8.1.4", "too many bytes")
    for selector in selectors:
        require(len(selector) == n_groups, "8.1.4", f"{len(selector)} elements of a selector")
        require(all(0 <= value < P for value in selector), "8.1.4", "an element is not below p")


def answer(slots: Sequence[Sequence[int]], selectors: Table, size: int) -> Table:
    """Return what an honest server answers: for each fetch the elements of a group."""
    width = len(slots[0])
    out = []
    for selector in selectors:
        sums = [0] * (size * width)
        for slot, elements in enumerate(slots):
            group, place = divmod(slot, size)
            for at, element in enumerate(elements):
                sums[place * width + at] += selector[group] * element
        out.append([value % P for value in sums])
    return out


@cache
def weights(tag_key: bytes, k: int, n_elements: int) -> tuple[int, ...]:
    """Return the weights of a tag."""
    return tuple(word(tag_key, TAG_WEIGHT, 0, k, at) for at in range(n_elements))


def _fits(tag_key: bytes, elements: Sequence[int], pads: Table, width: int) -> bool:
    """Tell whether all tags of one fetch fit, given the pads of each place."""
    n = width - N_TAGS
    for place, pad in enumerate(pads):
        slot = elements[place * width : (place + 1) * width]
        for k in range(N_TAGS):
            factors = weights(tag_key, k, n)
            total = sum(a * b for a, b in zip(factors, slot[:n], strict=True)) + pad[k]
            if slot[n + k] != total % P:
                return False
    return True


def _pads(tag_key: bytes, n_slots: int, size: int, group: int) -> Table:
    """Return the pads of a group; a slot that is not there has none."""
    return [
        [word(tag_key, TAG_PAD, 0, k, slot) if slot < n_slots else 0 for k in range(N_TAGS)]
        for slot in range(group * size, (group + 1) * size)
    ]


def lied(tag_key: bytes, n_slots: int, width: int, selectors: Table, elements: Table) -> bool:
    """Judge the answer to one share of selectors alone (step 8.1.7)."""
    n_groups, size = cut(n_slots, width)
    every = [_pads(tag_key, n_slots, size, group) for group in range(n_groups)]
    for selector, found in zip(selectors, elements, strict=True):
        pads = [
            [sum(e * every[g][b][k] for g, e in enumerate(selector)) for k in range(N_TAGS)]
            for b in range(size)
        ]
        if not _fits(tag_key, found, pads, width):
            return True
    return False


def combine(
    tag_key: bytes,
    n_slots: int,
    width: int,
    groups: Sequence[int],
    shares: Mapping[int, Table],
    answers: Mapping[int, Table],
    collusion_bound: int,
) -> tuple[Table, set[int]]:
    """Return the proved groups and who lied (steps 8.1.5 to 8.1.7).

    Raises:
        Refused: too few good answers are left; it names who lied.
    """
    _, size = cut(n_slots, width)
    liars: set[int] = set()
    for server, elements in answers.items():
        has_shape = len(elements) == len(groups) and all(len(e) == size * width for e in elements)
        if not has_shape or any(not 0 <= value < P for e in elements for value in e):
            liars.add(server)
    while True:
        used = [server for server in sorted(answers) if server not in liars][: collusion_bound + 1]
        if len(used) <= collusion_bound:
            raise Refused("8.1.7", f"{len(used)} good answers", servers=frozenset(liars))
        found = [
            interpolate({server: answers[server][i] for server in used}, 0)
            for i in range(len(groups))
        ]
        if all(
            _fits(tag_key, elements, _pads(tag_key, n_slots, size, group), width)
            for group, elements in zip(groups, found, strict=True)
        ):
            return found, liars
        named = {j for j in used if lied(tag_key, n_slots, width, shares[j], answers[j])}
        require(bool(named), "8.1.7", "nobody lied and the tags do not fit")
        liars |= named
