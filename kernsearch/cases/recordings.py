"""Recorded runs of cases and ladders: those that are shipped, a folder a device, and any that is read or kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from .. import files, json_text
from ..errors import CacheError
from ..records.lookup import shipped_folder

FOLDER = "recordings"
T = TypeVar("T")

# Finite and far from where products and ratios of them leave the range of floats.
Seconds = Annotated[float, Meta(ge=1e-18, le=1e9)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]  # of bytes, operations, registers


class Device(msgspec.Struct):
    """What is told of the device of any recording."""

    key: str
    name: str


def shipped(name: str) -> dict[str, Path]:
    """Where the recordings of a case (or "ladder-gemm") lie, by the key of the device that they were made on."""
    return {path.parent.name: path for path in sorted((shipped_folder() / FOLDER).glob(f"*/{name}.json"))}


def seen(name: str, *kinds: str) -> str:
    """How to see what is shipped of a case (or "ladder-gemm") from a kind of device, as "cuda", in words; "" where
    nothing is."""
    keys = [key for key in shipped(name) if key.partition("-")[0] in kinds]
    return f"--from {keys[0]} shows what was recorded there" if keys else ""


def read(where: str, name: str, part: str) -> dict[str, Any]:
    """Recorded data with a list called `part`: of a file, or of a device whose recording of `name` is shipped.

    Raises CacheError in one line for anything else.
    """
    known = shipped(name)
    path = known.get(where) or Path(where)
    if not where or not (path.exists() or "/" in where or where.endswith(".json")):
        devices = ", ".join(known) or "none"
        raise CacheError(
            f"{where or repr(where)}: want a file, or a device with a shipped recording of {name} ({devices})"
        )
    try:
        return json_text.read(path, json_text.holding(part), "a recording", nan=True)
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CacheError(f"{path}: {error}; want a recording with a list of {part}: {_again(name)}") from error


def whole(data: Mapping[str, Any], kind: type[T], schema: int, name: str, where: str) -> T:
    """Recorded data as a `kind`, which declares all that is read of them. Raises CacheError as `refused`, with the
    place, what is wanted there and what was given."""
    if (found := data.get("schema")) != schema or isinstance(found, bool):
        raise refused(f"want a recording of schema {schema}", data, schema, name, where)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise refused(_explained(str(error), data), data, schema, name, where) from error


def refused(why: str, data: Mapping[str, Any], schema: int, name: str, where: str) -> CacheError:
    """The error for recorded data of `name` that cannot be used. `where`: their file, or the key of a device."""
    has = f"it has schema {data['schema']!r:.20}" if "schema" in data else "it has no schema"
    return CacheError(f"{where}: {why}; {has}, this version reads {schema}: {_again(name)}")


def _again(name: str) -> str:
    op = name.removeprefix("ladder-")
    command = f"case {name} --out DIR" if op == name else f"ladder {op} --shape SIZES --out FILE"
    return f"`kernsearch {command}` records it again"


def _explained(message: str, data: Any) -> str:
    """A line of msgspec, as "Expected `float` >= 0.0 - at `$.arms[0].flops`", with the value that lies there."""
    wanted, _, place = message.partition(" - at `$")
    if "missing" not in wanted:
        for key, index, inside in re.findall(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])", place):
            if inside:  # of an object of any keys, which is not said: all of it is shown
                break
            data = data[key or int(index)]
        wanted += f", given {data!r:.60}"
    return f"{place.strip('.`')}: {wanted}" if place else wanted


def keep(path: Path, data: dict[str, Any]) -> None:
    """Write a recording. Raises OutputError where it cannot be written."""
    files.hand({path: json.dumps(data, indent=1) + "\n"})
