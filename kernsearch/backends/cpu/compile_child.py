"""The guard of a compiler: a small process that can always kill what it started.

Run as a script with the scratch folder as its argument; standard library only.

Reads one line of JSON from standard input:

    {"commands": [[argv...], ...], "environment": {name: value}, "timeout_s": wall clock for all commands,
     "memory_bytes": of each process, "file_bytes": of each file}

and writes one line: {"returncode", "stderr", "seconds", "timed_out"}. The commands run one after the other, each in its
own session, until one fails. When standard input ends the parent is gone or has lost interest, even if it was killed
with SIGKILL: the compiler and all its children are killed, the scratch folder is removed.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

HEAD_BYTES = 32 << 10  # of the messages: the first error says most
LOOK_S = 1.0  # how often to look whether the parent still lives, in case another process holds our pipe open


def main(folder: str) -> int:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    request = json.loads(line)
    os.environ.setdefault("PATH", os.defpath)  # where compilers look for the assembler
    os.environ.update(request["environment"])
    _limit(resource.RLIMIT_CPU, int(request["timeout_s"]) + 5)
    _limit(resource.RLIMIT_AS, int(request["memory_bytes"]))
    _limit(resource.RLIMIT_FSIZE, int(request["file_bytes"]))
    _limit(resource.RLIMIT_CORE, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    start = time.monotonic()
    messages, report = "", {"returncode": 0, "stderr": "", "timed_out": False}
    for command in request["commands"]:
        report = _run(command, folder, start + request["timeout_s"], wake)
        if report is None:
            shutil.rmtree(folder, ignore_errors=True)
            return 0
        messages += report["stderr"]
        if report["returncode"] != 0 or report["timed_out"]:
            break
    report["stderr"] = messages[:HEAD_BYTES]
    report["seconds"] = time.monotonic() - start
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _run(command: list, folder: str, deadline: float, wake: int):
    """The report of one command, None when the parent is gone."""
    parent = os.getppid()
    with open(os.path.join(folder, "messages"), "w+b") as messages:
        try:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
            )
        except OSError as error:
            return {"returncode": 127, "stderr": f"{command[0]}: {error.strerror}", "timed_out": False}
        orphaned = timed_out = False
        while process.poll() is None and not (orphaned or timed_out):
            ready, _, _ = select.select([0, wake], [], [], max(0.0, min(LOOK_S, deadline - time.monotonic())))
            if wake in ready:
                os.read(wake, 512)
            orphaned = 0 in ready or os.getppid() != parent
            timed_out = time.monotonic() >= deadline
        _kill_group(process)
        if orphaned:
            return None
        messages.seek(0)
        text = messages.read(HEAD_BYTES).decode("utf-8", "replace")
        return {"returncode": process.returncode, "stderr": text, "timed_out": timed_out}


def _kill_group(process: subprocess.Popen) -> None:
    """Kill what is left of the session: the compiler, and children that it left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _limit(which: int, value: int) -> None:
    """Lower a limit; one that is lower already stays."""
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
