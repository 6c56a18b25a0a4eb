"""A process that compiles with NVRTC, request after request, until its standard input ends.

Run as a script; nothing but the standard library and cuda.bindings. Being a process of its own, a compile that hangs
can be killed and one that crashes harms nobody. When standard input ends, the parent is gone or has lost interest: the
process ends at once, in the middle of a compile too.

It first writes one line of JSON, {"version": [major, minor], "archs": [...], "library": path or null}, or {"error":
words} when there is no NVRTC. Then each request is one line,

    {"name": file name for messages, "source": text, "headers": {name: text}, "options": [...], "want": "cubin" | "ptx"}

and each answer one line, {"status": 0 or NVRTC's error, "log": text, "seconds": time, "bytes": n}, and n bytes of code.
"""

import json
import os
import resource
import select
import sys
import threading
import time
from collections import deque

HEAD_CHARS = 64 << 10  # of the log: the first error says most
LOOK_S = 2.0  # how often to look whether the parent still lives, in case another process holds our pipe open
MEMORY_BYTES = 4 << 30


def main() -> None:
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    requests: deque[bytes] = deque()
    ready = threading.Semaphore(0)
    threading.Thread(target=_read, args=(requests, ready, os.getppid()), daemon=True).start()
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
        if int(status) != 0:
            raise RuntimeError(f"NVRTC does not tell its version ({status.name})")
        _, archs = nvrtc.nvrtcGetSupportedArchs()
        _answer({"version": [major, minor], "archs": list(archs), "library": _library()})
    except (ImportError, RuntimeError, OSError) as error:
        _answer({"error": f"{error}".strip().splitlines()[0]})
        return
    while True:
        ready.acquire()
        request = json.loads(requests.popleft())
        start = time.perf_counter()
        status, log, code = _compile(nvrtc, request)
        told = {"status": status, "log": log[:HEAD_CHARS], "seconds": time.perf_counter() - start, "bytes": len(code)}
        _answer(told, code)


def _compile(nvrtc, request: dict) -> tuple[int, str, bytes]:
    headers = request["headers"]
    status, program = nvrtc.nvrtcCreateProgram(
        request["source"].encode(),
        request["name"].encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    if int(status) != 0:
        return int(status), f"error: NVRTC cannot take the source ({status.name})", b""
    try:
        options = [option.encode() for option in request["options"]]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.rstrip(b"\0").decode("utf-8", "replace")
        if int(status) != 0:
            return int(status), text, b""
        of_size, get = {
            "cubin": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
            "ptx": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        }[request["want"]]
        _, size = of_size(program)
        code = bytearray(size)
        (status,) = get(program, code)
        return int(status), text, bytes(code) if int(status) == 0 else b""
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _library() -> "str | None":
    """The file of the NVRTC that is loaded."""
    with open("/proc/self/maps") as maps:
        names = {line.split(maxsplit=5)[-1].strip() for line in maps}
    return next((name for name in sorted(names) if os.path.basename(name).startswith("libnvrtc.")), None)


def _read(requests: "deque[bytes]", ready: threading.Semaphore, parent: int) -> None:
    """Collect requests; end the process when the parent is gone."""
    waiting = b""
    while True:
        can, _, _ = select.select([0], [], [], LOOK_S)
        if can:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                requests.append(line)
                ready.release()
        elif os.getppid() != parent:
            os._exit(0)


def _answer(told: dict, code: bytes = b"") -> None:
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n" + code)
    sys.stdout.buffer.flush()


def _limit(which: int, value: int) -> None:
    """Lower a limit; one that is lower already stays."""
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


if __name__ == "__main__":
    main()
