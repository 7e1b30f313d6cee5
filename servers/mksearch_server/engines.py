"""Open the engine that ``server.toml`` names, and remember what it runs on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mksearch.scoring.cuda import CudaEngine
from mksearch.scoring.engine import Engine, FallbackEngine, device_of, make_engine
from mksearch_server.config import ServerConfig
from mksearch_server.log import log_event
from mksearch_server.ray_config import RAY, RayConfig
from mksearch_server.ray_engine import RayEngine, open_ray
from mksearch_server.ray_routing import ShardHealth

__all__ = ["close_engine", "open_engine", "read_engine_note", "shard_health"]

#: In the store's folder: which engine ran last, on what, and the kernels that were fastest there.
_NOTE = "engine.json"


def open_engine(config: ServerConfig) -> Engine:
    """Return the engine of a server; what becomes of it later is logged and noted.

    Raises:
        EngineUnavailable: the engine that is named cannot be used here; never for "auto".
    """
    path = config.data / _NOTE
    opened: list[Engine] = []

    def report(line: str) -> None:
        log_event("engine-changed", cause=line)
        if opened:
            _write_note(path, opened[0])

    stored = read_engine_note(config).get("tables")
    engine: Engine
    if config.engine == RAY:
        engine = open_ray(config.ray or RayConfig(), config.folder, config.data, report)
    else:
        engine = make_engine(
            config.engine,
            report=report,
            stored_tables=stored if isinstance(stored, Mapping) else None,
        )
    opened.append(engine)
    _write_note(path, engine)
    return engine


def close_engine(engine: Engine) -> None:
    """End what an engine runs on, where that is more than this process."""
    if isinstance(engine, RayEngine):
        engine.close()


def shard_health(engine: Engine) -> ShardHealth | None:
    """Return how the shards of an engine are, None for one that has none."""
    return engine.health() if isinstance(engine, RayEngine) else None


def read_engine_note(config: ServerConfig) -> Mapping[str, object]:
    """Return "engine", "device" and "tables" of the last start; empty before the first."""
    try:
        note = json.loads((config.data / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(path: Path, engine: Engine) -> None:
    gpus = engine.gpus if isinstance(engine, FallbackEngine) else engine
    note = {
        "engine": engine.name,
        "device": device_of(engine),
        "tables": gpus.tables() if isinstance(gpus, CudaEngine) else {},
    }
    beside = path.with_suffix(".new")
    try:
        beside.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        # The next start measures again; nothing else depends on it.
        log_event("engine-unnoted", reason=error.strerror or "-")
