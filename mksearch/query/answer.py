"""Combine answer shares, take masks away, check every block, name who lied (steps 8.2 to 8.7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError, NotEnoughAnswers, VerificationError
from mksearch.field.modp import matmul, require_elements, subtract
from mksearch.field.shamir import Sharing, lagrange_coefficients
from mksearch.kernels.answers import failing_blocks, interpolate, subtract_masks
from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.params import Quorum
from mksearch.query.group import SegmentView
from mksearch.query.trapdoor import Trapdoor

__all__ = ["Attempt", "Sums"]

QUERY_ID_BYTES = 16

Sums = NDArray[np.uint16]


class Attempt:
    """One attempt to have one trapdoor scored against one level of one segment, or some blocks.

    It owns one polynomial: every server asked gets its value of it, and a new attempt starts from
    a new one.  Wrong answers are found by the check rows alone, whoever sent them.

    Attributes:
        liars: ids of servers proved to have answered wrongly, ascending.
    """

    def __init__(
        self,
        segment: SegmentView,
        trapdoor: Trapdoor,
        quorum: Quorum,
        random: RandomSource,
        *,
        version: int,
        level: int = 0,
        blocks: Sequence[int] | None = None,
    ) -> None:
        """Draw the polynomial.

        Args:
            segment: what is asked.
            trapdoor: the vectors of the level.
            quorum: number of servers and collusion bound.
            random: source of the polynomial and of the query id.
            version: of the collection.
            level: of the tree.
            blocks: to be scored, ascending and each once, at least one; None for the whole level.
        """
        self._blocks = None if blocks is None else tuple(blocks)
        self._segment = segment
        self._trapdoor = trapdoor
        self._quorum = quorum
        self._level = level
        self._version = version
        self._sharing = Sharing(trapdoor.vectors, quorum.collusion_bound, random)
        self._query_id = random.bytes(QUERY_ID_BYTES)
        self._answers: dict[int, Sums] = {}
        self._liars: set[int] = set()

    @property
    def liars(self) -> tuple[int, ...]:
        """Servers proved to have answered wrongly, ascending."""
        return tuple(sorted(self._liars))

    @property
    def n_bytes(self) -> int:
        """Bytes that a request is: shares and numbers of blocks."""
        return self._trapdoor.vectors.nbytes + 4 * len(self._blocks or ())

    @property
    def n_honest(self) -> int:
        """Answers held that were not proved wrong."""
        return len(self._honest())

    def _honest(self) -> list[int]:
        return sorted(set(self._answers) - self._liars)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an answer: (n_vectors, physical rows, tables)."""
        named = self._blocks
        n_blocks = self._segment.n_blocks(self._level) if named is None else len(named)
        geometry = self._segment.geometry(self._level)
        n_rows = n_blocks * self._segment.block.height
        return len(self._trapdoor.vectors), n_rows, geometry.n_tables

    def request(self, server: int) -> ScoreRequest:
        """Return what ``server`` is asked: its value of this attempt's polynomial."""
        return ScoreRequest(
            self._query_id,
            self._version,
            self._segment.id,
            self._level,
            self._sharing.share(server),
            self.shape,
            blocks=self._blocks or (),
        )

    def add(self, server: int, answer: ScoreAnswer) -> None:
        """Take the answer of ``server``; one that cannot be an answer proves a lie at once.

        Raises:
            FormatError: it belongs to another query, or is of a wrong shape or range.
        """
        if server in self._liars:
            return
        try:
            if answer.query_id != self._query_id:
                raise FormatError(f"server {server} answered another query", server=server)
            if answer.sums.shape != self.shape:
                raise FormatError(
                    f"server {server} sent sums of shape {answer.sums.shape} (need {self.shape})",
                    server=server,
                )
            self._answers[server] = require_elements(answer.sums, f"answer of server {server}")
        except FormatError as error:
            self._liars.add(server)
            error.server = server
            raise

    def combine(self) -> Sums:
        """Return the proved sums of every row of the level, or of the blocks in their order.

        Returns:
            uint16 (n_vectors, physical rows, tables): the query times the cells, check rows
            included; secret.

        Raises:
            NotEnoughAnswers: fewer than t + 1 answers that were not proved wrong; ask another
                server and call again.
        """
        while True:
            servers = self._honest()[: self._quorum.threshold]
            if len(servers) < self._quorum.threshold:
                raise NotEnoughAnswers(
                    f"{len(servers)} good answers (need {self._quorum.threshold})",
                    have=len(servers),
                    need=self._quorum.threshold,
                )
            combined = self._interpolate(servers, 0)
            sums = self._unmask(combined.copy())
            failed = self._failing_blocks(sums)
            if not failed.any():
                self._name_all_liars(combined)
                return sums
            self._judge_blocks(failed, servers)

    def _interpolate(self, servers: list[int], at: int) -> Sums:
        factors = np.array(lagrange_coefficients(servers, at), np.uint32)
        stacked = np.stack([self._answers[server].reshape(-1) for server in servers])
        out = np.empty(stacked.shape[1], np.uint16)
        interpolate(stacked, factors, out)
        return out.reshape(self.shape)

    def _unmask(self, combined: Sums) -> Sums:
        geometry = self._segment.geometry(self._level)
        for vector, sums in zip(self._trapdoor.vectors, combined, strict=True):
            columns = np.flatnonzero(vector)
            if len(columns):
                masks = self._segment.masks(self._level, columns, self._blocks)
                weights = vector[columns].astype(np.uint32)
                subtract_masks(sums, masks, weights, geometry.table_of(columns))
        return combined

    def _failing_blocks(self, sums: Sums) -> NDArray[np.bool_]:
        """Return for every vector and block whether a check fails: bool (n_vectors, n_blocks)."""
        block = self._segment.block
        failed = np.empty((len(sums), sums.shape[1] // block.height), np.bool_)
        checks = self._segment.check_vectors(self._level, self._blocks)
        for vector_sums, vector_failed in zip(sums, failed, strict=True):
            failing_blocks(vector_sums, checks, block.fan_out, vector_failed)
        return failed

    def _judge_blocks(self, failed: NDArray[np.bool_], servers: list[int]) -> None:
        """Judge ``servers`` alone in one failing block and name those that lied there."""
        vector, block = (int(at) for at in np.argwhere(failed)[0])
        liars = [server for server in servers if self._lied(server, vector, block)]
        if not liars:
            # By linearity this cannot be: shares that pass alone pass together.
            raise VerificationError(
                f"block {self._number(block)} fails its checks, but no single answer does",
                cure="the segment's keys are not those it was built with; fetch the manifest again",
            )
        self._liars.update(liars)

    def _name_all_liars(self, proved: Sums) -> None:
        """Find every liar among the answers held, once the value at 0 is proved.

        ``proved`` is the combined answer, still masked.  Lies may cancel at 0 and show elsewhere,
        so answers that disagree are only where to look: everybody is judged alone.
        """
        while True:
            honest = self._honest()
            base = honest[: self._quorum.threshold]
            if len(base) < self._quorum.threshold:
                return
            place = self._disagreement(base, 0, proved)
            for server in honest[len(base) :]:
                if place is None:
                    place = self._disagreement(base, server, self._answers[server])
            if place is None:
                return
            liars = {server for server in honest if self._lied(server, *place)}
            if not liars:
                return
            self._liars |= liars

    def _disagreement(self, servers: list[int], at: int, value: Sums) -> tuple[int, int] | None:
        """Return (vector, block) where the polynomial of ``servers`` is not ``value``, or None."""
        wrong = np.argwhere((self._interpolate(servers, at) != value).any(axis=2))
        if not len(wrong):
            return None
        vector, row = (int(number) for number in wrong[0])
        return vector, row // self._segment.block.height

    def _number(self, place: int) -> int:
        """Return which block of the level is at a place of the answers."""
        return place if self._blocks is None else self._blocks[place]

    def _lied(self, server: int, vector: int, place: int) -> bool:
        """Judge one answer alone in one block: step 8.7, with the whole keystream of the block."""
        geometry = self._segment.geometry(self._level)
        height = self._segment.block.height
        first, block = place * height, [self._number(place)]
        masks = self._segment.masks(self._level, np.arange(geometry.width), block)
        share = self._sharing.share(server)[vector]
        masked = np.empty((height, geometry.n_tables), np.uint16)
        tables = geometry.table_of(np.arange(geometry.width))
        for table in range(geometry.n_tables):
            panels = (tables < 0) | (tables == table)
            masked[:, table] = matmul(masks[panels].T, share[panels])
        sums = subtract(self._answers[server][vector, first : first + height], masked)
        checks = self._segment.check_vectors(self._level, block)
        failed = np.empty(1, np.bool_)
        failing_blocks(sums, checks, self._segment.block.fan_out, failed)
        return bool(failed[0])
