"""Every number of the protocol, with its unit, range and reason (docs/protocol.md, section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mksearch.errors import ParameterError

# --- field --------------------------------------------------------------------
#: Prime of the field: the largest below 2**16, so that a cell is one uint16, a product of two
#: fits in uint32 and 2**32 products fit in uint64.
P: Final = 65521

# --- text and weights ---------------------------------------------------------
#: Fixed-point unit of weights and query weights: 2**-30, so scores are in units of 2**-60.
WEIGHT_BITS: Final = 30
WEIGHT_ONE: Final = 1 << WEIGHT_BITS
#: Largest quantised weight.
IMPACT_MAX: Final = 127
#: Largest sum of quantised query weights in one vector: IMPACT_MAX * 515 = 65405 <= P - 1.
QUERY_SUM_MAX: Final = (P - 1) // IMPACT_MAX
#: BM25 as Lucene computes it.
BM25_K1: Final = 1.2
BM25_B: Final = 0.75

# --- index --------------------------------------------------------------------
#: Panels are multiples of this many columns, so that compiled loops have whole tiles.
PANEL_UNIT: Final = 64
#: Tables of shared columns.
N_TABLES: Final = 3
N_TABLES_MAX: Final = 8
#: Data rows and check rows of one block; their sum is a multiple of 8, the rows that one AES
#: block masks.
FAN_OUT: Final = 61
N_CHECKS: Final = 3
#: Tallest block: check rows are summed in 32 bits.
BLOCK_ROWS_MAX: Final = 512
#: Levels of the tree (one byte in AES inputs; 61**8 rows is far beyond any segment).
N_LEVELS_MAX: Final = 16
#: Columns of level 0 for each distinct term of a mean document (measured: docs/decisions/0005).
COLUMNS_PER_TERM: Final = 72
D0_MIN: Final = 256
D0_MAX: Final = 8192
#: Width of the nodes of level 1 over the width of level 0 (measured: docs/decisions/0019).
NODE_WIDTH_FACTOR: Final = 4
#: The same for the levels above the lowest nodes: few rows, each with most of the vocabulary.
TOP_WIDTH_FACTOR: Final = 16
#: AES blocks that one mask key may produce (2**64 would be the birthday bound of 128-bit blocks).
MASK_BLOCKS_MAX: Final = 1 << 32

# --- records and blobs --------------------------------------------------------
#: A record element carries this many bits, so that every element is below P.
ELEMENT_BITS: Final = 15
#: Tag elements of a record slot.
N_TAGS: Final = 3
#: Slot sizes in units of 15 bytes = 8 elements: 510, 1020, 1530, 2040 bytes.
SLOT_UNITS: Final = (34, 68, 102, 136)
#: Percentage of the records that must fit in one slot.
SLOT_FIT_PERCENT: Final = 97
#: Plaintext bytes of one authenticated chunk of a blob.
CHUNK_BYTES: Final = 65536
#: Snippet kept in a record, characters.
SNIPPET_CHARS: Final = 200
TITLE_CHARS: Final = 200
#: Longest external id, bytes of UTF-8.
ID_BYTES_MAX: Final = 1024

#: Private fetches of one request: the number is public, so it is one of these (bytes: a fetch is
#: some 20 KB each way and server at 100,000 records).
FETCH_CLASSES: Final = (4, 8, 16, 32, 64)
#: Bytes of selectors that one call may bring: 64 fetches from 2**19 groups.
SELECTOR_BYTES_MAX: Final = 1 << 26

# --- access -------------------------------------------------------------------
#: Longest policy, bytes of UTF-8: it stands in every manifest, and parsing stays below a few ms.
POLICY_BYTES_MAX: Final = 4096
#: Parentheses within parentheses: far beyond what people read, far below Python's stack.
POLICY_DEPTH_MAX: Final = 32
#: Leaves of a policy with its comparisons written out: a header of 37 KB, a third of a second.
POLICY_LEAVES_MAX: Final = 256
#: Attributes of one key, as typed, and UTF-8 bytes of each name and value.
ATTRIBUTES_MAX: Final = 64
ATTRIBUTE_BYTES_MAX: Final = 256
#: Width of the numbers that policies compare: a comparison costs at most this many rows, a number
#: in a key this many points; 32 bits hold dates as days or seconds (until 2106).
NUMBER_BITS: Final = 32
#: Epochs and share generations are a u64 on disk, from 1.
EPOCH_MAX: Final = (1 << 64) - 1
#: Weakest group that is used without being told to, bits (NIST SP 800-57: 112 until 2030).
GROUP_BITS_MIN: Final = 112
#: Random weight of each equation when many are proved at once, bits: a wrong one passes with
#: probability 2**-128.
BATCH_WEIGHT_BITS: Final = 128

# --- sizes --------------------------------------------------------------------
SALT_BYTES: Final = 32
KEY_BYTES: Final = 32
COLLECTION_BYTES: Final = 16
#: Servers of one collection: evaluation points 1..n; a byte on the wire.
N_SERVERS_MAX: Final = 255
#: Servers that were replaced, which a manifest goes on naming: four changes of every place.
N_RETIRED_MAX: Final = 1024
#: Vectors of one query: the number is public, so it is padded to one of these.
VECTOR_CLASSES: Final = (1, 2, 4)
#: Distinct terms above which a query is split into more vectors (rounding costs one unit a term
#: of QUERY_SUM_MAX).
TERMS_PER_VECTOR: Final = 64
#: Blocks that one request names; 8.4 million rows of 128, and 64 kB or so on the wire.
BLOCKS_MAX: Final = 1 << 16
#: Records that one search may read before it gives up exactness.
MAX_RECORDS: Final = 2000
K_MAX: Final = 10_000
#: Life of a manifest, seconds (90 days), and how long before its end clients warn (14 days).
MANIFEST_LIFE_S: Final = 90 * 86400
MANIFEST_WARNING_S: Final = 14 * 86400
#: Seconds that the clocks of clients, servers and owners may differ.
CLOCK_S: Final = 120


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many servers there are and how many of them may collude.

    Attributes:
        n_servers: servers, 3..255; their ids are 1..n_servers.
        collusion_bound: t, servers that may collude, at least 1 and n_servers >= 2 t + 1.
    """

    n_servers: int = 3
    collusion_bound: int = 1

    def __post_init__(self) -> None:
        if self.collusion_bound < 1:
            raise ParameterError(
                f"collusion bound {self.collusion_bound} is below 1",
                cure="a bound of 0 would show every query to each server; use 1 or more",
            )
        if not 2 * self.collusion_bound + 1 <= self.n_servers <= N_SERVERS_MAX:
            raise ParameterError(
                f"{self.n_servers} servers do not carry a collusion bound of "
                f"{self.collusion_bound} (need {2 * self.collusion_bound + 1}..{N_SERVERS_MAX})",
                cure="add servers or lower the collusion bound",
            )

    @property
    def threshold(self) -> int:
        """Answers needed: t + 1."""
        return self.collusion_bound + 1
