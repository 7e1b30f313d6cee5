"""docs/benchmarks.md, generated from figures alone.

Explanations stand here; numbers come from the JSON, so the document cannot say what was not
measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.bench.showing import HEAD, Measured, cells, duration, figures_of, number, parts_of

__all__ = ["MEANINGS", "render"]

INTRODUCTION = (
    "# Benchmarks\n\nWritten by `./dev bench --report` from "
    "[benchmarks/figures.json](benchmarks/figures.json); not to be edited. What is measured is "
    "what a user would wait or pay for; what must hold is decided beforehand, and `./dev bench` "
    "ends with code 1 when it does not. Tests assert no times."
)

#: What each figure says, by key; a key that ends in a dot stands for all that begin with it.
MEANINGS = {
    "engine.read_ratio_": "A server reads every cell of its index once a query. The ratio says how "
    "near the compiled loop comes to a loop that only sums the same mapped bytes as uint64, "
    "with as many threads, in turn with it; the median of the ratios of neighbouring runs. 1 would "
    "be a search at the price of reading. One vector, 65,536 rows x 2,048 columns, 268 MB.",
    "engine.products": "Eight query shares that wait together take one pass: products of "
    "16-bit numbers, accumulated in 64 bits and reduced modulo p, by one thread, a second of "
    "processor time.",
    "engine.queries_": "Processor time of the engine alone: no network, no signatures.",
    "throughput.": "Processor time (user and kernel) of a whole server process divided by the "
    "queries that it answered: messages, signatures and idle spinning of threads included. Clients "
    "keep 24 requests under way, or one. What was measured at other sizes is scaled by cells.",
    "search.6": "Wall time of one `search` of three keywords by an open client that has searched "
    "before: trapdoor, shares, two of three server processes with files of their own, "
    "combination, unmasking, check of every row, records fetched and opened until the top 10 is "
    "proved. Default widths and threads, loopback, median of 20 over 20 queries. The "
    "texts are evenly spaced documents of all365k.",
    "search.1": "The same with twice the documents.",
    "search.check": "What the client computes between the answers and the bounds: interpolation, "
    "keystream of the query's columns for every row, all check rows.",
    "search.cold": "A whole process, from the start of Python to the JSON on standard output, with "
    "dictionary and headers in the profile; median of 5.",
    "outages.": "Wall time of one `search` of three keywords by an open client while n - t - 1 "
    "servers, those that are asked first, are away. Hanging: stopped by SIGSTOP just before, so "
    "the search waits for one hedge delay; in turn with searches by all servers, each after a "
    "pause as long. Following: the servers stay stopped; who owes an answer is asked last. Must "
    "be: 1.2 times the median with all servers, and one hedge delay. Answers are compared with "
    "those of before; medians.",
    "tls.": "The same three server processes with the same files, restarted with TLS 1.3 and once "
    "more without; queries of three keywords, medians. 20 MB of a stored segment come in pieces of "
    "1 MiB from one server, the time of the client included. Connections are open already.",
    "widths.": "Both hold for one and the same index, at the widths that the builder chose by "
    "itself: wide rows cost bytes, narrow ones cost records. 10 records would be perfect. A record "
    "is read when the bound of its row reaches the tenth score. Index bytes are what a search "
    "reads whole; records, which are read one by one, come on top.",
    "private.": "Every search is done in balanced and in full, in turn, and their hits are "
    "compared. Bytes are those of the arrays that all servers asked were sent and sent back, "
    "without transport.",
    "pruned.": "Cells of all blocks that were named, on every level and check rows included, over "
    "the cells of the documents' level, which the other modes read whole; means over the queries "
    "(the number is the same for each server asked). Every search is compared with one in "
    "balanced. Exponents: growth of the cells read a search, all365k. Times are of the whole "
    "search, the two ways in turn, in one client.",
    "building.": "`publish` of one collection from a process with one core and one thread; reading "
    "the file twice, hashing, counting, weighing, ordering, masking, sealing records and texts are "
    "in; the upload to three servers is not.",
    "changes.add_": "`publish` of mix99k without every hundredth document, then of a file with "
    "these: the second over the first, with reading, uploading to three servers and activation. "
    "Bytes are those that the servers did not hold before.",
    "changes.segments": "The same documents, published in ten steps, and merged: median searches "
    "of three keywords.",
    "changes.compact": "`compact` of the ten segments, all keys new, over publishing as much.",
    "large.owner": "Most resident memory (VmHWM) of the process that published, mapped files "
    "included.",
    "large.server": "Anonymous memory (RssAnon) of a server process, looked at ten times a second: "
    "the index is a mapped file that the kernel may drop at any time, the rest is not.",
    "large.search": "As above; no limit was set at this size.",
    "access.": "Group operations of the slowest kind, pairings, as the unit: the machine cancels "
    "out. Nothing is kept between calls; a policy of ten leaves joined by AND.",
    "authority.": "Processor time, so that waiting does not count: of the user's process and of "
    "all servers for an enrolment, of one core for refusals. A server that is flooded with forged "
    "queries spends this on them and nothing else.",
    "shards.": "All levels of one segment of random cells, by the engine `cpu` with all cores and "
    "by two replicas with a core each, in turn; sums come back through shared memory. No network "
    "lies between them, and no search around them.",
    "peers.": "TF-IDF scores of the hits of this product against scikit-learn's for the same "
    "queries on the same texts: protection costs time, not ranking.",
}

CORPORA = (
    "* **mix99k**: the abstracts of SciFact, all package descriptions of Debian, the first 29,507 "
    "entries of dictionaries: 99,253 documents; SciFact's judged claims are the queries of about "
    "10 terms.\n"
    "* **all365k**: SciFact, dictionaries, package descriptions and manuals: 364,651 documents; "
    "20 queries of three keywords, written for it.\n"
    "* Where these are absent (`MKSEARCH_DATA`), synthetic texts take their place, every figure "
    "says so, and nothing is judged."
)

GPUS = (
    "**The engine `cuda` has not run on a GPU yet**: no machine with one was at hand. What is "
    "known of it is known without (its kernels, run on the processor, give the bits of the other "
    "engines, and they compile), so no figure here is about it. `python -m tests.gpu.run_all` "
    "compares and times it on a machine with a GPU; its table, with date and card, belongs here. "
    "The goals, for one H200 and a million rows of 4,096 columns: with one query at least 0.8 of "
    "what a copy on the device moves, and 10,000 queries a second when 512 share a pass."
)

LIMITS = (
    "* Three servers, owner and client share the cores, caches and memory of **one machine** and "
    "talk over loopback. In use they would not: a network adds its round trips (four or five "
    "a search: manifest, scores, records in rounds) and the transfer of the sums (6 bytes a row "
    "and server), three machines take the contention away.\n"
    "* Medians hide tails; the 90th percentile stands in the table of searches, of only 20.\n"
    "* All files are in the page cache. A server that reads its index from disk is as slow as the "
    "disk.\n"
    "* English texts only. Queries were written by the authors or taken from SciFact.\n"
    "* Engines in the clear are called as libraries in one process, without a network; their "
    "indexes are built from the same tokens. They have operators, fields and updates that "
    "this product lacks.\n"
    "* Figures of CKKS and MPyC are extrapolated in proportion from few documents. Their product "
    "is the one operation of this product and no search engine; who builds one on them would "
    "pack, batch and prune, and gain a factor that this comparison does not know. They could "
    "hide more than this product does (which records are fetched), at more cost.\n"
    "* Systems of the literature (Coeus, Tiptoe, Compass, DORY) were not run; their papers "
    "measured on other machines, data and goals."
)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _rows(measured: Measured, table: str) -> list[dict[str, Any]]:
    """Return the rows of all tables of this name."""
    return [row for part in parts_of(measured) for row in part["tables"].get(table, [])]


def render(measured: Measured) -> str:
    """Return docs/benchmarks.md."""
    sections = [
        INTRODUCTION,
        "## Figures\n\n" + _table(HEAD, map(cells, figures_of(measured))) + _unfinished(measured),
        "## What the figures mean\n\n" + _meanings(measured),
        "## Machine and method\n\n" + _machine(measured),
        _searches(measured),
        _reading(measured),
        _records(measured),
        _pruned(measured),
        _building(measured),
        _peers(measured),
        "## GPUs\n\n" + GPUS,
        "## Limits of these measurements\n\n" + LIMITS,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _unfinished(measured: Measured) -> str:
    lines = [
        f"* part `{name}` did not end: {part['failed']}"
        for name, part in measured["parts"].items()
        if part["failed"]
    ]
    lines += [f"* {note}" for part in parts_of(measured) for note in part["notes"]]
    return "\n\n" + "\n".join(lines) if lines else ""


def _meanings(measured: Measured) -> str:
    lines = []
    keys = [figure.key for figure in figures_of(measured)]
    for prefix, meaning in MEANINGS.items():
        names = [f"`{key}`" for key in keys if key.startswith(prefix)]
        if names:
            lines.append(f"* {', '.join(names)}: {meaning}")
    return "\n".join(lines)


def _machine(measured: Measured) -> str:
    machine = measured["environment"]
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    loads = [part["load_before"] for part in parts_of(measured)]
    busy = (
        f"Before the parts began, between {min(loads)} and {max(loads)} other processes wanted a "
        "core on average (what an earlier part left in that average included)."
        if loads
        else ""
    )
    text = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}; Python {machine['python']}, {libraries}. {busy}\n\n"
        "Times are wall clock unless they are called processor time; medians, after runs that do "
        "not count. Servers are processes of their own with files of their own. Everything that is "
        "compared is measured in one run and, where it is short, in turn.\n\n"
    )
    return text + CORPORA


def _searches(measured: Measured) -> str:
    rows = sorted(_rows(measured, "latency"), key=lambda row: float(row["documents"]))
    if not rows:
        return ""
    head = ["documents", "corpus", "columns", "median", "90 %", "waiting for servers",
            "unmask and check", "records", "records read", "sent", "received"]  # fmt: skip
    table = _table(
        head,
        (
            [
                f"{row['documents']:,}",
                row["corpus"],
                f"{row['columns']:,}",
                f"{number(row['median_ms'])} ms",
                f"{number(row['p90_ms'])} ms",
                f"{number(row['servers_ms'])} ms",
                f"{number(row['check_ms'])} ms",
                f"{number(row['records_ms'])} ms",
                number(row["records"]),
                f"{number(row['sent_bytes'] / 1000)} KB",
                f"{number(row['received_bytes'] / 1000)} KB",
            ]
            for row in rows
        ),
    )
    text = f"## Searches\n\nThree keywords, an open client, two of three servers.\n\n{table}"
    parts = _rows(measured, "parts")
    if parts:
        names = {
            "shares_ms": "trapdoor and shares",
            "product_ms": "product, one server",
            "transfer_ms": "messages and signature, one server",
            "check_ms": "combine, unmask, check",
        }
        rows_of_parts = (
            [f"{row['documents']:,}", *(f"{number(row[name])} ms" for name in names)]
            for row in sorted(parts, key=lambda row: float(row["documents"]))
        )
        text += "\n\nEach part by itself, one server after another:\n\n"
        text += _table(["documents", *names.values()], rows_of_parts)
    return text + _image(measured, "latency", "latency against number of documents")


def _reading(measured: Measured) -> str:
    rows = _rows(measured, "reading")
    if not rows:
        return ""
    names = ("plain_read_gb_s", "one_vector_gb_s", "eight_vectors_gb_s")
    table = _table(
        ["threads", "plain read", "one vector", "eight vectors together"],
        ([str(row["threads"]), *(f"{number(row[name])} GB/s" for name in names)] for row in rows),
    )
    return (
        "## Reading and scoring\n\nBytes of cells a second, medians.\n\n"
        + table
        + _image(measured, "reading", "bytes scored a second beside a plain read")
    )


def _records(measured: Measured) -> str:
    rows, sizes = _rows(measured, "records"), _rows(measured, "bytes")
    if not rows:
        return ""
    spread = _table(
        ["queries", "terms", "columns", "mean", "median", "90 %", "most"],
        (
            [number(float(row[name])) for name in row if name in {"queries", "terms"}]
            + [f"{row['columns']:,}"]
            + [number(float(row[name])) for name in ("mean", "median", "p90", "most")]
            for row in rows
        ),
    )
    text = f"## Records and bytes\n\nRecords read for an exact top 10 on mix99k:\n\n{spread}"
    for size in sizes:
        text += "\n\nBytes a document: " + ", ".join(
            f"{name} {number(value)}" for name, value in size.items()
        )
        text += (
            " (documents and nodes with their check rows). Sealed dictionary, lookup, catalogue "
            "and the texts themselves are not part of the index."
        )
    return text


def _pruned(measured: Measured) -> str:
    rows, growth = _rows(measured, "cells"), _rows(measured, "growth")
    if not rows:
        return ""
    names = ("mean", "median", "p90", "most", "blocks", "waits", "waits_most", "records")
    table = _table(
        ["queries", "cells read", "median", "90 %", "most", "blocks", "waits", "most", "records"],
        ([row["queries"], *(number(float(row[name])) for name in names)] for row in rows),
    )
    kinds = ("claims", "words")
    grown = _table(
        ["documents", *(f"cells, {kind}" for kind in kinds), *(f"waits, {kind}" for kind in kinds)],
        (
            [f"{row['documents']:,}"]
            + [number(float(row[kind])) for kind in kinds]
            + [number(float(row[f"{kind}_waits"])) for kind in kinds]
            for row in growth
        ),
    )
    text = "## Named blocks\n\nCells over those of all documents, privacy fast, mix99k:\n\n"
    return f"{text}{table}\n\nCells a search and most waits, all365k:\n\n{grown}"


def _building(measured: Measured) -> str:
    rows = sorted(_rows(measured, "steps"), key=lambda row: float(row["documents"]))
    if not rows:
        return ""
    names = ("read_s", "index_s", "encrypt_s", "upload_s", "processor_s")
    head = ["documents", "columns", "read and seal", "index", "encrypt", "upload to three",
            "processor time", "peak memory"]  # fmt: skip
    table = _table(
        head,
        (
            [
                f"{row['documents']:,}",
                f"{row['columns']:,}",
                *(f"{number(row[name])} s" for name in names),
                f"{number(row['owner_peak_gb'])} GB",
            ]
            for row in rows
        ),
    )
    return f"## Building\n\nThe owner's process; the smaller one had one core.\n\n{table}"


def _peers(measured: Measured) -> str:
    rows = _rows(measured, "peers")
    if not rows:
        return ""
    head = ["system", "what was measured", "hides the documents", "hides the query",
            "notices wrong answers", "a query", "how"]  # fmt: skip
    table = _table(
        head,
        (
            [
                row["name"],
                row["does"],
                row["hides_documents"],
                row["hides_query"],
                row["proves"],
                duration(row["ms"]),
                row["measured"],
            ]
            for row in rows
        ),
    )
    return (
        "## Others, and what they protect\n\nmix99k and claims of about 10 terms, one run. No row "
        "is better or worse: each answers another question about whom to trust.\n\n"
        + table
        + _image(measured, "peers", "time of a query of each system")
    )


def _image(measured: Measured, name: str, text: str) -> str:
    known = measured.get("plots", [])
    return f"\n\n![{text}](benchmarks/{name}.svg)" if name in known else ""
