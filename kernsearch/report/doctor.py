"""`kernsearch doctor`: what would be used here, and what is missing."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from .. import backends, settings
from ..errors import CompilerError, KernsearchError
from ..units import size

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
    findings["cuda"] = _cuda()
    findings["libraries"] = {name: _version(name) for name in _LIBRARIES}
    return findings


def _cuda() -> dict[str, Any]:
    """GPUs, or the one reason why none can be used; NVRTC, which compiles without one too. Fails nothing."""
    from dataclasses import asdict

    from ..backends.cuda import BACKEND, nvml
    from ..backends.cuda import device as devices

    found: dict[str, Any] = {"problem": devices.missing(), "devices": []}
    for index in range(devices.count()):
        device = BACKEND.device(index)
        state = nvml.state(device)
        about = {"name": device.name, "arch": device.arch, "key": device.key, **device.facts}
        found["devices"].append({**about, "state": None if state is None else asdict(state)})
    if found["devices"]:
        found |= {"driver": nvml.driver(), "cuda": devices.cuda_version()}
    try:
        device = BACKEND.device(0) if found["devices"] else BACKEND.compile_only("sm_80")
        found["nvrtc"] = BACKEND.toolchain(device).version
    except KernsearchError as error:
        found["nvrtc_problem"] = str(error)
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        if name == "cupy":  # its wheels are named after the CUDA version
            found = [_version(f"cupy-cuda{major}x") for major in (12, 13)]
            return next(filter(None, found), None)
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
    for i, line in enumerate(_cuda_lines(findings["cuda"], findings["libraries"])):
        click.echo(f"{'' if i else 'cuda':9s} {line}")
    for i, (name, found) in enumerate(findings["libraries"].items()):
        click.echo(f"{'' if i else 'libraries':9s} {name} {found or 'not installed'}")
    click.echo("ready to tune" if findings["ok"] else "not ready: see above")


def _cuda_lines(found: dict[str, Any], libraries: dict[str, str | None]) -> Iterator[str]:
    """What `_cuda` found, for people."""
    nvrtc = f"NVRTC {found['nvrtc']}" if "nvrtc" in found else found["nvrtc_problem"]
    if found["problem"]:
        yield found["problem"]
        yield f"{nvrtc}, which compiles without a GPU" if "nvrtc" in found else nvrtc
        return
    for index, device in enumerate(found["devices"]):
        yield f"cuda:{index} {device['name']} ({device['arch']}), {device['sms']} SMs, {size(device['memory_bytes'])}"
        if state := device["state"]:
            told = (
                ("sm_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "°C"),
            )  # fmt: skip
            now = [f"{state[key]:.0f} {unit}" for key, unit in told if state[key] is not None]
            held = f"; held back: {', '.join(state['throttled'])}" if state["throttled"] else ""
            yield f"       now {', '.join(now)}{held}"
    yield f"driver {found['driver']} (CUDA {found['cuda']}), {nvrtc}, CuPy {libraries['cupy']}"
