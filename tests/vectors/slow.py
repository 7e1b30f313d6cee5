"""The reference implementation on the inputs of a vector; it must give what the file says.

Every `check_*` takes a vector file and raises AssertionError where the two implementations differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tests.reference import (
    evidence,
    field,
    index,
    keys,
    keystream,
    manifest,
    records,
    search,
    stream,
    text,
)
from tests.reference import segment as segments
from tests.reference.codec import encode_cbor, u64
from tests.reference.text import Scoring, Statistics

from .material import Json, case_of, content_of, load, pack, unpack, unpack_bytes, unpack_table


def unhex(value: str) -> bytes:
    """Return the bytes of a hexadecimal string."""
    return bytes.fromhex(value)


def bundle_of(owner: Json) -> dict[str, bytes]:
    """Return the keys of a group."""
    master, collection = unhex(owner["master"]), unhex(owner["collection"])
    return keys.bundle_keys(master, collection, owner["epoch"], unhex(owner["policy"]))


def statistics_of(case: Json, terms: Sequence[str]) -> Statistics:
    """Return the statistics that a vector states."""
    return Statistics(case["n_docs"], case["total_length"], list(terms), case["dfs"])


# --- sections 1 to 4.3 ---------------------------------------------------------------------------


def check_keystream(file: Json) -> None:
    """Words, runs and permutations."""
    key = unhex(file["key"])
    replaced = set()
    for w in file["words"]:
        address = w["domain"], w["level"], w["column"], w["row"]
        assert keystream.word(key, *address) == w["word"]
        block = keystream.block(key, w["domain"], w["level"], w["column"], w["row"] >> 3)
        at = 2 * (w["row"] & 7)
        if int.from_bytes(block[at : at + 2], "little") >= field.P:
            replaced.add(address)
    assert replaced == {tuple(address) for address in file["replaced"]}
    assert replaced, "no word takes the way of step 3"
    for run in file["runs"]:
        rows = range(run["first_row"], run["first_row"] + run["n_rows"])
        words = [keystream.word(key, run["domain"], run["level"], run["column"], r) for r in rows]
        raw = b"".join(value.to_bytes(2, "little") for value in words)
        assert hashlib.sha256(raw).hexdigest() == run["sha256"]
    for p in file["permutations"]:
        expected = keystream.keyed_permutation(key, p["domain"], p["level"], p["m"])
        assert expected == p["permutation"]


def check_kdf(file: Json) -> None:
    """Keys by label, and that the reference uses these labels for the keys of the table."""
    owner = file["owner"]
    bundle = bundle_of(owner)
    for entry in file["keys"]:
        assert keys.hkdf(
            _parent(owner, entry["from"]), entry["label"], unhex(entry["context"])
        ) == (unhex(entry["key"]))
    named = {entry["label"].removeprefix("mksearch/1/"): entry for entry in file["keys"]}
    salt = unhex(named["segment/mask"]["context"])
    own = keys.segment_keys(bundle, salt)
    columns = keys.column_keys(bundle)
    base, stream_salt = unhex(named["stream/blob"]["from"]), unhex(named["stream/blob"]["context"])
    used = {
        **{f"bundle/{kind}": bundle[kind] for kind in keys.BUNDLE_KINDS},
        **{f"segment/{name}": value for name, value in own._asdict().items()},
        "columns/dedicated": columns.dedicated,
        "columns/shared": columns.shared,
        "section/dictionary": keys.section_key(bundle, "dictionary"),
        "section/lookup": keys.section_key(bundle, "lookup"),
        "section/catalogue": keys.catalogue_key(unhex(owner["master"]), unhex(owner["collection"])),
        "lookup-id": keys.lookup_key(bundle),
        "wrap": keys.wrapping_key(bundle),
        **{
            f"stream/{kind}": keys.stream_key(base, kind, stream_salt)
            for kind in ("blob", "dictionary", "lookup", "catalogue")
        },
    }
    assert {label: entry["key"] for label, entry in named.items()} == {
        label: key.hex() for label, key in used.items()
    }
    for entry in file["lookup_places"]:
        place = stream.lookup_place(keys.lookup_key(bundle), entry["id"])
        assert place.hex() == entry["place"]
    assert file["other_labels"] == {
        name: module._LABEL.removesuffix(b"\x00").decode()
        for name, module in (
            ("answer", evidence),
            ("manifest", manifest),
            ("record", records),
            ("stream", stream),
        )
    }


def _parent(owner: Json, name: str) -> bytes:
    if name == "master":
        return unhex(owner["master"])
    kind = name.removeprefix("bundle ")
    return bundle_of(owner)[kind] if kind != name else unhex(name)


def check_shamir(file: Json) -> None:
    """Shares, zero coefficients among them, and Lagrange coefficients."""
    secret = file["secret"]
    assert file["p"] == field.P
    for case in file["shares"]:
        for share in case["shares"]:
            expected = field.shamir(secret, case["coefficients"], share["server"])
            assert expected == share["share"]
        threshold = len(case["coefficients"]) + 1
        some = {s["server"]: s["share"] for s in case["shares"][-threshold:]}
        assert field.interpolate(some, 0) == secret
    assert any(not any(case["coefficients"][0]) for case in file["shares"]), "no zero polynomial"
    for entry in file["lagrange"]:
        assert field.lagrange(entry["ids"], entry["at"]) == entry["coefficients"]


def check_weights(file: Json) -> None:
    """Weights, query weights, steps, impacts, parts."""
    for case in file["collections"]:
        names = [f"{i:04}" for i in range(len(case["dfs"]))]
        stats, scoring = statistics_of(case, names), Scoring(**case["scoring"])
        for document in case["documents"]:
            tfs = dict(document["tfs"])
            weights = text.document_weights(scoring, stats, tfs, document["length"])
            assert list(weights.values()) == document["weights"]
        for query in case["queries"]:
            terms = [names[i] for i, count in query["counts"] for _ in range(count)]
            assert list(text.query_weights(scoring, stats, terms).values()) == query["weights"]
    for sweep in file["frequencies"]:
        stats, scoring = statistics_of(sweep, ["a", "b"]), Scoring(**sweep["scoring"])
        got = [
            text.document_weights(scoring, stats, {0: tf, 1: 1}, sweep["length"])[0]
            for tf in range(1, 1001)
        ]
        assert got == sweep["weights_of_term_0_for_tf_1_to_1000_beside_term_1_once"]
    for case in file["steps"]:
        step = text.segment_step(max(case["weights"], default=0))
        assert step == case["step"]
        assert [text.impact(weight, step) for weight in case["weights"]] == case["impacts"]
    for case in file["queries"]:
        query = dict(zip(case["terms"], case["weights"], strict=True))
        parts = text.quantised_query(query, [part["terms"] for part in case["parts"]])
        for part, told in zip(parts, case["parts"], strict=True):
            assert part.u == told["u"]
            assert [part.weights[i] for i in told["terms"]] == told["weights"]


def check_columns(file: Json) -> None:
    """Columns of terms."""
    column_keys = keys.column_keys(bundle_of(file["owner"]))
    for case in file["cases"]:
        for number, level in enumerate(case["levels"]):
            widths = level["w0"], level["w1"]
            placed = index.columns_of(
                column_keys, number, file["terms"], level["n_dedicated"], widths, case["n_tables"]
            )
            assert placed.of == level["columns"]


# --- sections 4.6 to 7 ---------------------------------------------------------------------------


def check_record(file: Json) -> None:
    """Record bytes, slots, tags."""
    collection, salt = unhex(file["owner"]["collection"]), unhex(file["salt"])
    own = keys.segment_keys(bundle_of(file["owner"]), salt)
    rows = [
        index.Row(dict(row["tfs"]), row["length"], sorted(tuple(m) for m in row["members"]))
        for row in file["rows"]
    ]
    for row, entry in zip(rows, file["rows"], strict=True):
        assert records.encode_record(row) == unhex(entry["record"])
        assert records.decode_record(unhex(entry["record"])) == row
    slots, layout = records.build_slots(rows, own, collection, salt)
    assert (layout.units, layout.n_slots) == (file["units"], file["n_slots"])
    assert [pack(slot) for slot in slots] == file["slots"]
    assert [slot[layout.n_elements :] for slot in slots] == file["tags"]
    assert records.slot_order(own, layout.n_slots) == file["physical"]
    for number, entry in enumerate(file["rows"]):
        asked: list[int] = []

        def fetch(numbers: list[int], asked: list[int] = asked) -> list[list[int]]:
            asked += numbers
            return [slots[slot] for slot in numbers]

        assert records.open_record(layout, own, number, fetch) == rows[number]
        assert asked == [file["physical"][slot] for slot in entry["logical_slots"]]
    assert max(len(entry["logical_slots"]) for entry in file["rows"]) > 2, "no record spills"
    for case in file["units_chosen"]:
        few, (small, large) = case["larger"], case["record_bytes"]
        sizes = [bytes(small)] * (case["n_rows"] - few) + [bytes(large)] * few
        assert records.choose_units(sizes) == case["units"]


def check_stream(file: Json) -> None:
    """Padme, sealed streams, contents."""
    for x, padded in file["padme"]:
        assert stream.padme(x) == padded
    key, salt, collection = (unhex(file[name]) for name in ("key", "salt", "collection"))
    for case in file["streams"]:
        content = content_of(case["content_bytes"])
        sealed = stream.seal_stream(case["kind"], key, collection, salt, content)
        assert len(sealed) == case["file_bytes"]
        assert stream.stream_name(sealed).hex() == case["sha256"]
        assert sealed.hex() == case.get("file", sealed.hex())
        assert stream.open_stream(case["kind"], key, collection, sealed) == content
    _check_contents(file["contents"])


def _check_contents(contents: Json) -> None:
    bundle = bundle_of(contents["owner"])
    for blob in contents["blobs"]:
        raw = stream.encode_blob(blob["id"], blob["title"], blob["text"])
        assert raw.hex() == blob["content"]
        assert stream.decode_blob(raw) == (blob["id"], blob["title"], blob["text"])
    told, inflated = contents["dictionary"], unhex(contents["dictionary"]["inflated"])
    [facts] = told["segments"]
    dictionary = stream.Dictionary(
        told["analyzer"],
        told["stop_words"],
        Scoring(**told["scoring"]),
        statistics_of(told, told["terms"]),
        told["n_dedicated"],
        [stream.SegmentEntry(unhex(facts["salt"]), facts["step"], (1, 1))],
    )
    assert stream.dictionary_cbor(dictionary) == inflated
    assert stream.decode_dictionary(stream.deflate(inflated)) == dictionary
    entries = {}
    for entry in contents["lookup"]["documents"]:
        wrapped = stream.wrap_blob_key(keys.wrapping_key(bundle), unhex(entry["key"]))
        assert wrapped.hex() == entry["wrapped"]
        entries[entry["id"]] = stream.LookupEntry(
            entry["segment"], entry["row"], unhex(entry["blob"]), entry["size"], wrapped
        )
    lookup = stream.encode_lookup(keys.lookup_key(bundle), entries)
    assert lookup.hex() == contents["lookup"]["content"]
    catalogue = [
        stream.CatalogueEntry(i, unhex(digest), row, unhex(salt), unhex(blob))
        for i, digest, row, salt, blob in contents["catalogue"]["entries"]
    ]
    inflated = unhex(contents["catalogue"]["inflated"])
    assert stream.catalogue_cbor(catalogue) == inflated
    assert stream.catalogue_cbor(stream.decode_catalogue(stream.deflate(inflated))) == inflated
    blobs = {unhex(name): size for name, size in contents["blob_list"]["blobs"]}
    assert stream.encode_blob_list(blobs).hex() == contents["blob_list"]["file"]


def corpus_of(case: Json) -> list[tuple[str, str, str, list[str]]]:
    """Return the documents of a segment as the reference wants them."""
    return [(d["id"], d["title"], d["snippet"], d["terms"]) for d in case["documents"]]


def build(case: Json, rows: Sequence[Sequence[int]]) -> segments.Built:
    """Build the segment of a case; `rows` are document numbers, row by row."""
    return segments.plan_segment(
        corpus_of(case),
        [number for row in rows for number in row],
        unhex(case["owner"]["collection"]),
        case["owner"]["epoch"],
        unhex(case["salt"]),
        bundle_of(case["owner"]),
        case["fan_out"],
        case["n_checks"],
        case["n_tables"],
        [(w0, w1) for w0, w1 in case["widths"]],
        Scoring(**case["scoring"]),
    )


@cache
def built_segment(name: str) -> segments.Built:
    """Return the segment of that name of segment.json, built once."""
    case = case_of(load("segment"), name)
    return build(case, case["rows"])


def check_segment(file: Json) -> None:
    """Whole segments, byte for byte."""
    for case in file["cases"]:
        built = built_segment(case["name"])
        stats = statistics_of(case, case["terms"])
        assert built.stats == stats
        assert built.step == case["step"]
        assert [min(w0, len(case["terms"])) for w0, _ in case["widths"]] == case["n_dedicated"]
        raw = segments.encode_segment(built.segment)
        if "file" in case:
            assert raw == unpack_bytes(case["file"])
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (case["file_bytes"], case["sha256"])
        assert segments.segment_id(raw).hex() == case["id"]
        header = segments.read_header(raw)
        assert [s["offset"] for s in (*header["levels"], header["slots"])] == case["offsets"]
        assert segments.read_segment(raw) == built.segment
        assert built.segment.units == case["units"]
        assert len(built.segment.slots) == case["n_slots"]


def check_manifest(file: Json) -> None:
    """Bodies, signatures, hashes, and reading them in a chain."""
    owner_key, collection = unhex(file["owner_key"]), unhex(file["collection"])
    seen = None
    for case in file["manifests"]:
        body = manifest.encode_body(body_of(case["fields"]))
        assert body.hex() == case["body"]
        signed = manifest.sign_manifest(body, unhex(file["owner_seed"]))
        assert signed.hex() == case["file"]
        assert signed[-64:].hex() == case["signature"]
        read = manifest.read_manifest(signed, owner_key, collection, file["now"], seen)
        assert read == body_of(case["fields"])
        assert manifest.manifest_hash(body).hex() == case["hash"]
        seen = read["version"], manifest.manifest_hash(body)
    for case in file["cbor"]:
        assert encode_cbor(case["value"]).hex() == case["encoded"]


def body_of(fields: Json) -> Json:
    """Return a manifest's body from JSON."""
    body = _unhexed(fields, ("collection", "previous", "owner_key"))
    body["catalogue"] = _unhexed(fields["catalogue"], ("id",))
    body["groups"] = [
        {
            **_unhexed(group, ("policy",)),
            "segments": [_unhexed(entry, ("id", "salt")) for entry in group["segments"]],
            **{name: _unhexed(group[name], ("id",)) for name in ("dictionary", "lookup", "blobs")},
        }
        for group in fields["groups"]
    ]
    return body


def _unhexed(fields: Json, names: Sequence[str]) -> Json:
    return {**fields, **{name: unhex(fields[name]) for name in names}}


# --- section 8 -----------------------------------------------------------------------------------


def member_of(case: Json, built: segments.Built) -> search.Member:
    """Return a member of the group of a built segment."""
    salt = unhex(case["salt"])
    dedicated = [min(w0, len(built.stats.terms)) for w0, _ in case["widths"]]
    dictionary = stream.Dictionary(
        "plain-1",
        [],
        Scoring(**case["scoring"]),
        built.stats,
        dedicated,
        [stream.SegmentEntry(salt, built.step, (1, 1))],
    )
    return search.Member(bundle_of(case["owner"]), dictionary, built.segment)


@cache
def member(name: str) -> search.Member:
    """Return a member of the group of a segment of segment.json."""
    return member_of(case_of(load("segment"), name), built_segment(name))


def check_trapdoor(file: Json) -> None:
    """Query weights, parts, vectors, shares."""
    me = member(file["segment"])
    for case in file["queries"]:
        query = me.query(case["terms"])
        assert [list(pair) for pair in query.items()] == case["weights"]
        parts = text.quantised_query(query, case["split"])
        assert [part.u for part in parts] == case["units"]
        for view, vectors in zip(me.views, case["levels"], strict=True):
            got = [search.query_vector(part, view.columns) for part in parts]
            assert [[[c, v] for c, v in enumerate(q) if v] for q in got] == vectors
    for case in file["shares"]:
        q = vector_of(me, case["terms"], 0)
        coefficients = [unpack(lines) for lines in case["coefficients"]]
        assert len(coefficients) == case["collusion_bound"]
        for share in case["shares"]:
            assert pack(field.shamir(q, coefficients, share["server"])) == share["share"]


def vector_of(me: search.Member, terms: Sequence[str], level: int) -> list[int]:
    """Return the one vector of a short query."""
    query = me.query(terms)
    [part] = text.quantised_query(query, text.deal(query))
    return search.query_vector(part, me.views[level].columns)


def check_answer(file: Json) -> None:
    """Answers, combination, unmasking, checks, judgements, bounds."""
    me = member(file["segment"])
    for case in file["attempts"]:
        _check_attempt(me, case)


def _check_attempt(me: search.Member, case: Json) -> None:
    view, n_tables = me.views[case["level"]], me.segment.n_tables
    q = vector_of(me, case["terms"], case["level"])
    coefficients = [unpack(lines) for lines in case["coefficients"]]
    assert len(coefficients) == case["collusion_bound"] == len(case["used"]) - 1
    shares = {a["server"]: field.shamir(q, coefficients, a["server"]) for a in case["answers"]}
    assert list(shares) == list(range(1, case["n_servers"] + 1))
    answers: dict[int, search.Sums] = {}
    for entry in case["answers"]:
        server = entry["server"]
        got = search.HonestServer(me.segment).answer(b"", case["level"], shares[server]).sums
        for error in case["errors"]:
            if error["server"] == server:
                row, table = error["row"], error["table"]
                got[row][table] = (got[row][table] + error["add"]) % field.P
        assert got == unpack_table(entry["sums"], n_tables)
        answers[server] = got
    used = case["used"]
    assert field.lagrange(used, 0) == case["lagrange"]
    combined = search.combine({j: answers[j] for j in used})
    assert combined == unpack_table(case["combined"], n_tables)
    sums = view.unmask(combined, q, range(len(combined)))
    assert list(sums.values()) == unpack_table(case["sums"], n_tables)
    blocks = range(len(combined) // (view.fan_out + view.n_checks))
    assert [b for b in blocks if not view.holds(b, sums)] == case["failing_blocks"]
    for entry in case["answers"]:
        server = entry["server"]
        lied = [b for b in blocks if view.lied(b, answers[server], shares[server])]
        assert lied == entry["judged"]
    if "bounds" in case:
        [part] = text.quantised_query(me.query(case["terms"]), [list(me.query(case["terms"]))])
        places = [index.physical(r, view.fan_out, view.n_checks) for r in range(me.segment.n_rows)]
        assert [part.u * min(sums[place]) for place in places] == case["bounds"]


def check_ranking(file: Json) -> None:
    """Bounds, hits and exact scores."""
    for case in file["searches"]:
        me = member(case["segment"])
        servers = {j: search.HonestServer(me.segment) for j in (1, 2)}
        draw = drawing(case["segment"])
        query = me.query(case["terms"])
        bounds, _ = me.bounds(0, query, case["split"], draw, 1, servers)
        assert bounds == case["bounds"]
        found = me.search(case["terms"], case["k"], draw, 1, servers, split=case["split"])
        assert found.exact
        got = [(hit.external_id, str(hit.score), hit.title) for hit in found.hits]
        assert got == [(hit["id"], hit["score"], hit["title"]) for hit in case["hits"]]
        rows = case_of(load("segment"), case["segment"])["rows"]
        ids = [d["id"] for d in case_of(load("segment"), case["segment"])["documents"]]
        assert all(hit["id"] in [ids[n] for n in rows[hit["row"]]] for hit in case["hits"])


def drawing(label: str) -> Callable[[int], list[int]]:
    """Return a source of field elements; which ones does not change what a search finds."""
    counter = 0

    def draw(n: int) -> list[int]:
        nonlocal counter
        counter += 1
        raw = hashlib.shake_256(label.encode() + u64(counter)).digest(4 * n)
        return [int.from_bytes(raw[at : at + 4], "big") % field.P for at in range(0, 4 * n, 4)]

    return draw


CHECKS: Mapping[str, Callable[[Any], None]] = {
    name.removeprefix("check_"): value
    for name, value in sorted(globals().items())
    if name.startswith("check_")
}
