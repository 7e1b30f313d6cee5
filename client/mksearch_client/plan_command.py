"""``mksearch plan``: sizes, traffic and machines of a collection that is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mksearch_client.options import Json

if TYPE_CHECKING:
    from mksearch_client.planning import Plan

__all__ = ["PLAN_EXAMPLE", "plan"]

PLAN_EXAMPLE = "Example: mksearch plan --documents 1000000 --terms 80 --queries 5"
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def plan(  # noqa: PLR0913 - options of a command
    *,
    documents: Annotated[int, typer.Option(help="Documents, up to 10,000,000,000.")],
    terms: Annotated[
        float,
        typer.Option(
            help="Distinct words of a mean document: 30 a paragraph, 80 an abstract, 300 an article"
        ),
    ] = 30.0,
    queries: Annotated[float, typer.Option(help="Queries a second.")] = 1.0,
    words: Annotated[int, typer.Option(help="Words of a mean query.")] = 3,
    k: Annotated[int, typer.Option("-k", help="Hits wanted.")] = 10,
    servers: Annotated[int, typer.Option(help="Servers: n, one an operator.")] = 3,
    collusion: Annotated[int, typer.Option(help="Servers that may collude: t.")] = 1,
    vocabulary: Annotated[
        int | None, typer.Option(help="Distinct words of all documents [as English texts have].")
    ] = None,
    record_bytes: Annotated[
        int | None,
        typer.Option(help="Record bytes that 97 % of the documents stay within [by --terms]."),
    ] = None,
    text_bytes: Annotated[
        int | None, typer.Option(help="Text of a mean document, bytes [by --terms].")
    ] = None,
    cores: Annotated[int, typer.Option(help="Processor cores of one machine.")] = 16,
    gpu_memory_gb: Annotated[float, typer.Option(help="Memory of one GPU, GB.")] = 141.0,
    as_json: Json = False,
) -> None:
    """Say what a collection would take: sizes, traffic by mode, processors, GPUs. Asks nobody."""
    from mksearch.params import Quorum
    from mksearch_client.planning import Corpus, Load, Machine, make_plan
    from mksearch_client.terminal import print_json

    made = make_plan(
        Corpus.of(
            documents,
            terms,
            vocabulary=vocabulary,
            record_bytes=record_bytes,
            text_bytes=text_bytes,
        ),
        Load(queries, words, k, Quorum(servers, collusion)),
        Machine(cores, gpu_memory_gb * 1e9),
    )
    if as_json:
        print_json(made.to_json())
        return
    # Aligned with blanks, which `out` would take out; nothing in it comes from elsewhere.
    for line in _lines(made):
        typer.echo(line)


def _size(n_bytes: float) -> str:
    for unit, size in _UNITS:
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes:.0f} B"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} us"


def _lines(made: Plan) -> Iterator[str]:
    """Yield what people read."""
    corpus, load, quorum = made.corpus, made.load, made.load.quorum
    level = made.levels[0]
    h = (level["columns"] - level["dedicated"]) // level["table"]
    yield (
        f"{corpus.documents:,} documents of {corpus.terms:g} terms, {corpus.vocabulary:,} words: "
        f"{level['columns']:,} columns ({level['dedicated']} + {h} x {level['table']}), "
        f"{len(made.levels)} levels, {made.n_segments} segment{'s'[: made.n_segments > 1]}"
    )
    yield (
        f"each of {quorum.n_servers} servers stores {_size(made.server_bytes)}: "
        f"index {_size(made.index_bytes)}, records {_size(made.record_bytes)}, "
        f"documents {_size(made.document_bytes)}, lists {_size(made.list_bytes)}"
    )
    yield (
        f"the owner computes for {_time(made.build_cpu_s)} of one core and sends "
        f"{_size(made.upload_bytes)}"
    )
    yield ""
    yield (
        f"a query of {load.words} words and {load.k} hits, {quorum.threshold} of "
        f"{quorum.n_servers} servers asked"
    )
    modes = made.modes
    rows: list[tuple[str, list[str]]] = [
        ("", [mode.mode for mode in modes]),
        ("speeds and sizes", [mode.basis for mode in modes]),
        ("records fetched", [f"{mode.records:,}" for mode in modes]),
        ("sent", [_size(mode.sent_bytes) for mode in modes]),
        ("received", [_size(mode.received_bytes) for mode in modes]),
        ("server, one core, alone", [_time(mode.server_cpu_s) for mode in modes]),
        ("  eight together", [_time(mode.server_cpu_shared_s) for mode in modes]),
        ("server, one GPU, alone *", [_time(mode.server_gpu_s) for mode in modes]),
        ("  hundreds together *", [_time(mode.server_gpu_shared_s) for mode in modes]),
        ("client, one core", [_time(mode.client_cpu_s) for mode in modes]),
    ]
    needs: list[tuple[str, list[str]]] = [
        ("memory", [_size(mode.memory_bytes) for mode in modes]),
        ("cores busy", [f"{mode.cores:.3g}" for mode in modes]),
        (f"machines of {made.machine.cores} cores", [f"{mode.machines:,}" for mode in modes]),
        ("or GPUs *", [f"{mode.gpus:,}" for mode in modes]),
    ]
    for name, cells in rows:
        yield f"  {name:<28}" + "".join(f"{cell:>14}" for cell in cells)
    yield ""
    yield f"{load.queries:g} queries a second take, of each server"
    for name, cells in needs:
        yield f"  {name:<28}" + "".join(f"{cell:>14}" for cell in cells)
    yield ""
    yield from _notes(made)


def _notes(made: Plan) -> Iterator[str]:
    """Yield what must be known beside the numbers."""
    from mksearch_client.planning import MEASURED_DOCUMENTS

    yield (
        "measured: sizes by the format's own rules, speeds from docs/benchmarks.md, cores of an "
        "AMD EPYC; extrapolated: the same beyond the largest collection measured, "
        f"{MEASURED_DOCUMENTS:,} documents; modelled: by the design, no run has confirmed it; "
        "--json lists every figure with its source"
    )
    yield "* goals for one H200; no run on a GPU has confirmed them"
    if made.n_segments > 1:
        yield (
            f"one segment does not carry so many documents: publish {made.n_segments} parts one "
            "after another"
        )
    if any(mode.machines > 1 for mode in made.modes):
        yield "more than one machine for one server is not part of this release"
