"""`kernsearch doctor`: what would be used here, and what is missing."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from .. import backends, settings
from ..errors import CompilerError, KernsearchError
from .units import size

_LIBRARIES = ("numpy", "optuna", "networkx", "joblib", "msgspec", "ziglang", "optuna-dashboard", "torch", "cupy")
_SIZES = ("l1d_bytes", "l2_bytes", "l3_bytes", "memory_bytes", "line_bytes")


def examine() -> dict[str, Any]:
    """Findings as plain data; `ok` says that tuning can work here. Reads, and creates the folders it names."""
    backend, device = backends.resolve("cpu")
    findings: dict[str, Any] = {
        "ok": True,
        "kernsearch": version("kernsearch"),
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": {"key": device.key, "name": device.name, "arch": device.arch, **dict(device.facts)},
    }
    try:
        toolchain = backend.toolchain(device)
        findings["compiler"] = {"name": toolchain.name, "version": toolchain.version, "id": toolchain.id}
    except CompilerError as error:
        findings["compiler"] = {"problem": str(error)}
        findings["ok"] = False
    for name, folder in (("data", settings.get().data_dir), ("cache", settings.get().cache_dir)):
        try:
            findings.setdefault("folders", {})[name] = str(folder())
        except KernsearchError as error:
            findings.setdefault("folders", {})[name] = str(error)
            findings["ok"] = False
    try:
        backends.resolve("cuda")
        findings["cuda"] = "usable"
    except KernsearchError as error:
        findings["cuda"] = str(error)
    findings["libraries"] = {name: _version(name) for name in _LIBRARIES}
    return findings


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return "present" if importlib.util.find_spec(name.replace("-", "_")) else None


def print_findings(findings: dict[str, Any]) -> None:
    device = dict(findings["device"])
    click.echo(f"kernsearch {findings['kernsearch']}, Python {findings['python']}, {findings['system']}")
    click.echo(f"device    {device.pop('name')} ({device.pop('arch')})")
    click.echo(f"          key {device.pop('key')}")
    for fact, value in sorted(device.items()):
        click.echo(f"          {fact} {size(value) if fact in _SIZES else value}")
    compiler = findings["compiler"]
    click.echo(f"compiler  {compiler.get('problem') or compiler['name'] + ' ' + compiler['version']}")
    for name, folder in findings["folders"].items():
        click.echo(f"{name:9s} {folder}")
    click.echo(f"cuda      {findings['cuda']}")
    for i, (name, found) in enumerate(findings["libraries"].items()):
        click.echo(f"{'' if i else 'libraries':9s} {name} {found or 'not installed'}")
    click.echo("ready to tune" if findings["ok"] else "not ready: see above")
