"""Change a policy group: documents that come and go, segments that are merged, what follows.

Nothing is sealed or written here; the publisher does that with what comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mksearch.index.dictionary import RATIO_ONE, SegmentFacts
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.looseness import KAPPA_ONE, kappa, term_ratios
from mksearch.index.record import Member
from mksearch.text.vocabulary import CorpusCounter, CountedTexts, Counts, Vocabulary, renumbered
from mksearch.text.weights import Scoring
from mksearch_client.held import HeldGroup, HeldSegment

__all__ = ["KAPPA_MAX", "ChangedGroup", "Fresh", "change_group"]

#: Looseness of a segment's bounds above which its group is rewritten: 1.2.
KAPPA_MAX = KAPPA_ONE * 6 // 5


@dataclass(frozen=True, eq=False)
class Fresh:
    """The documents of a segment that is to be built.

    Attributes:
        counts: their term frequencies; the vocabulary and statistics are the group's.
        members: id, title and snippet of each.
        hashes: content hash of each.
        geometry: widths of the group, None where all of it is built anew.
        n_dedicated: dedicated terms of each of these levels.
    """

    counts: Counts
    members: Sequence[Member]
    hashes: Sequence[bytes]
    geometry: Sequence[LevelGeometry] | None = None
    n_dedicated: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class ChangedGroup:
    """What a group becomes.

    Attributes:
        kept: segments that stay, with their facts of today.
        merged: numbers of the segments whose live documents go into the new one.
        fresh: documents of the new segment: the added ones, then those of the merged segments;
            None where there are none.
        vocabulary: terms and statistics of all live documents.
        n_dedicated: of the dictionary, None where all of the group is built anew.
        ratios: int64 (n_terms,).
    """

    kept: tuple[HeldSegment, ...]
    merged: tuple[int, ...]
    fresh: Fresh | None
    vocabulary: Vocabulary
    n_dedicated: tuple[int, ...] | None
    ratios: NDArray[np.int64]

    @property
    def is_anew(self) -> bool:
        """Tell whether nothing of the group stays."""
        return not self.kept


def change_group(
    held: HeldGroup,
    scoring: Scoring,
    added: Fresh,
    merged: Collection[int],
    levels: Sequence[LevelGeometry],
) -> ChangedGroup:
    """Work out what a group becomes; it is rewritten whole where its bounds would get loose.

    Args:
        held: the group without the documents that go.
        scoring: of the group.
        added: documents that come, with a vocabulary of their own.
        merged: segments whose documents go into the new segment; those without live documents do
            in any case, if others remain.
        levels: widths of the group: of the segment with the most levels.
    """
    everything = tuple(range(len(held.segments)))
    n_added = len(added.members)
    chosen = set(merged)
    if n_added or held.n_live:
        chosen |= {at for at, segment in enumerate(held.segments) if not segment.n_live}
    n_fresh = n_added + sum(held.segments[at].n_live for at in chosen)
    is_large = n_added > 0 and n_added >= held.n_live
    is_high = len(BlockShape().level_rows(max(1, n_fresh))) > len(levels)
    if is_large or is_high or len(chosen) == len(everything):
        return _anew(held, everything, added)
    return _changed(held, scoring, added, tuple(sorted(chosen)), levels) or _anew(
        held, everything, added
    )


def _anew(held: HeldGroup, everything: tuple[int, ...], added: Fresh) -> ChangedGroup:
    """Return the group as one segment, its terms numbered anew."""
    corpus = CorpusCounter()
    corpus.add(0, _counted(added.counts))
    for at in everything:
        corpus.add(at + 1, _counted_segment(held, held.segments[at]))
    counts = corpus.finish()
    members, hashes = _documents(held, everything, added)
    fresh = Fresh(counts, members, hashes) if members else None
    ratios = np.full(len(counts.vocabulary.terms), RATIO_ONE, np.int64)
    return ChangedGroup((), everything, fresh, counts.vocabulary, None, ratios)


def _counted(counts: Counts) -> CountedTexts:
    sizes = np.diff(counts.indptr).astype(np.int32)
    terms = list(counts.vocabulary.terms)
    return CountedTexts(terms, counts.term_ids, counts.tfs, sizes, counts.lengths)


def _counted_segment(held: HeldGroup, segment: HeldSegment) -> CountedTexts:
    postings = segment.document_postings()
    used, local = np.unique(postings.term_ids, return_inverse=True)
    terms = [held.dictionary.terms[term] for term in used.tolist()]
    sizes = np.diff(postings.indptr).astype(np.int32)
    return CountedTexts(terms, local.astype(np.int32), postings.tfs, sizes, postings.lengths)


def _documents(
    held: HeldGroup, merged: Sequence[int], added: Fresh
) -> tuple[list[Member], list[bytes]]:
    members, hashes = list(added.members), list(added.hashes)
    for at in merged:
        segment = held.segments[at]
        numbers = np.flatnonzero(segment.live).tolist()
        members += [segment.part.member(number) for number in numbers]
        hashes += [segment.part.hashes[number] for number in numbers]
    return members, hashes


def _changed(
    held: HeldGroup,
    scoring: Scoring,
    added: Fresh,
    merged: tuple[int, ...],
    levels: Sequence[LevelGeometry],
) -> ChangedGroup | None:
    """Return the group with a new segment beside older ones; None where bounds would get loose."""
    known = held.dictionary.ids
    new_terms = [term for term in added.counts.vocabulary.terms if term not in known]
    terms = (*held.dictionary.terms, *new_terms)
    ids = dict(known) | {term: number for number, term in enumerate(new_terms, len(known))}
    own = renumbered(added.counts, [ids[term] for term in added.counts.vocabulary.terms])
    vocabulary = _vocabulary(held, own, terms)
    now = vocabulary.statistics
    kept = [held.segments[at] for at in range(len(held.segments)) if at not in merged]
    built = [(s.part.statistics, _distinct(s.live_postings.term_ids, len(terms))) for s in kept]
    counts = _joined(own, [held.segments[at] for at in merged], vocabulary)
    if len(counts.lengths):
        built.append((now, _distinct(counts.term_ids, len(terms))))
    ratios = term_ratios(scoring, now, built)
    loose = [kappa(scoring, now, s.part.statistics, s.live_postings, ratios) for s in kept]
    if max(loose) > KAPPA_MAX:
        return None
    n_dedicated = held.dictionary.n_dedicated
    members, hashes = _documents(held, merged, added)
    return ChangedGroup(
        tuple(
            replace(s, facts=SegmentFacts(s.facts.salt, s.facts.step, (number, KAPPA_ONE)))
            for s, number in zip(kept, loose, strict=True)
        ),
        merged,
        Fresh(counts, members, hashes, levels, n_dedicated[: len(levels)]) if members else None,
        vocabulary,
        n_dedicated,
        ratios,
    )


def _distinct(term_ids: NDArray[np.int32], n_terms: int) -> NDArray[np.int64]:
    is_used = np.zeros(n_terms, bool)
    is_used[term_ids] = True
    return np.flatnonzero(is_used)


def _vocabulary(held: HeldGroup, own: Counts, terms: tuple[str, ...]) -> Vocabulary:
    """Return terms and statistics of all live documents, the added ones among them."""
    dfs = np.bincount(own.term_ids, minlength=len(terms)).astype(np.int64)
    n_docs, total_length = len(own.lengths), int(own.lengths.sum())
    for segment in held.segments:
        postings = segment.part.postings
        each = np.repeat(segment.live_rows, np.diff(postings.indptr))
        # Exact in binary64: far below 2**53.
        found = np.bincount(postings.term_ids, each, minlength=len(terms))
        dfs += found.astype(np.int64)
        n_docs += segment.n_live
        total_length += int((postings.lengths * segment.live_rows).sum())
    return Vocabulary(terms, dfs, n_docs, total_length)


def _joined(own: Counts, merged: Sequence[HeldSegment], vocabulary: Vocabulary) -> Counts:
    """Return the counts of the added documents, then those of the merged segments."""
    postings = [segment.document_postings() for segment in merged]
    sizes = np.concatenate([np.diff(own.indptr), *(np.diff(p.indptr) for p in postings)])
    return Counts(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.concatenate([own.term_ids, *(p.term_ids for p in postings)]).astype(np.int32),
        np.concatenate([own.tfs, *(p.tfs for p in postings)]).astype(np.int32),
        np.concatenate([own.lengths, *(p.lengths for p in postings)]).astype(np.int64),
        vocabulary,
    )
