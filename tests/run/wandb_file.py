"""Reads the file of an offline W&B run back: its id, configuration and rows."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HEADER = struct.Struct("<4sHB")  # b":W&B", 0xBEE1, 0
CHUNK = struct.Struct("<IHB")  # checksum, length, kind: 1 whole, 2 first, 3 middle, 4 last piece
BLOCK = 32768  # no chunk crosses a multiple of this


class OfflineRun(NamedTuple):
    run_id: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    step_metrics: dict[str, str]  # name or glob of a metric -> what it is plotted against
    exit_code: int | None


def read_offline_run(path: Path) -> OfflineRun:
    """Everything of a run that the tests ask for."""
    run_id, exit_code = "", None
    config: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    step_metrics: dict[str, str] = {}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                run_id = record.run.run_id
                config |= values(record.run.config.update)
            case "config":
                config |= values(record.config.update)
            case "metric":
                metric = record.metric
                step_metrics[metric.glob_name or metric.name] = metric.step_metric
            case "history":
                rows.append(values(record.history.item))
            case "exit":
                exit_code = record.exit.exit_code
    return OfflineRun(run_id, config, rows, step_metrics, exit_code)


def values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def records(path: Path) -> Iterator[Any]:
    """The records of the file, up to where it was cut off if it was."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert HEADER.unpack_from(data) == (b":W&B", 0xBEE1, 0)
    position, pieces = HEADER.size, b""
    while position + CHUNK.size <= len(data):
        left_in_block = BLOCK - position % BLOCK
        if left_in_block < CHUNK.size:
            position += left_in_block
            continue
        _, length, kind = CHUNK.unpack_from(data, position)
        position += CHUNK.size
        piece = data[position : position + length]
        if kind == 0 or len(piece) < length:
            return
        position += length
        pieces += piece
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record
