"""`kernsearch dashboard`: optuna-dashboard over the tuning storage, on loopback, for reading only.

A visitor can look at everything and change nothing, so that no click ends a search; whoever wants to edit starts
optuna-dashboard itself. The process yields the processor to whatever else wants it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, BinaryIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from .. import settings
from ..errors import DashboardError, StorageError
from ..search.opening import artifacts_of, file_of
from ..search.study import Studies

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"
PORT = 8080
_NAMES = (HOST, "localhost")  # by which a browser may call us; any other name is a page that means to reach through it
_MAKES = "`kernsearch tune gemm --shape 512x512x512{}` makes one"


class _Files:
    """The artifact folder as optuna-dashboard reads it."""

    def __init__(self, folder: Path):
        self._folder = folder

    def open_reader(self, artifact_id: str) -> BinaryIO:
        return open(self._folder / artifact_id, "rb")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False

    def server_bind(self) -> None:
        """Without looking up our own name, which takes seconds where no name server answers."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def open_server(port: int = PORT, storage: str | None = None) -> WSGIServer:
    """A server that listens, on a free port if `port` is 0; `serve_forever` serves. `storage`: as `tune --storage`.

    Raises DashboardError without optuna-dashboard or for a port that cannot be had, StorageError for a storage that is
    missing, empty or unreadable.
    """
    try:
        from optuna_dashboard._app import create_app
    except ImportError as error:
        raise DashboardError("the dashboard wants optuna-dashboard: pip install 'kernsearch[explore]'") from error
    url = storage or str(settings.data_dir() / "studies.db")
    makes = _MAKES.format(f" --storage {storage}" if storage else "")
    app = create_app(_studies(url, makes).storage, artifact_store=_Files(artifacts_of(url)))
    try:
        server = make_server(HOST, port, reading(app), server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DashboardError(f"port {port}: {why}; `kernsearch dashboard --port 0` takes one that is free") from error
    return server


def address(server: WSGIServer) -> str:
    """Where a browser finds it."""
    return f"http://{HOST}:{server.server_port}/dashboard/"


def yield_processor() -> None:
    """From now on this process runs when no other wants the processor: a search beside it is timed undisturbed."""
    os.nice(19)


def reading(app: WSGIApplication) -> WSGIApplication:
    """The application without all that changes something, and for callers that know it by its own address only."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", HOST).rpartition(":")[0] not in _NAMES:
            return _refused(start_response, f"this dashboard is for {HOST} only")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _refused(start_response, "this dashboard is for reading; optuna-dashboard itself can edit")
        return app(environ, start_response)

    return answer


def _refused(start_response: Callable[..., Any], reason: str) -> list[bytes]:
    start_response("403 Forbidden", [("Content-Type", "application/json")])
    return [json.dumps({"reason": reason}).encode()]


def _studies(url: str, makes: str) -> Studies:
    file = file_of(url)
    if file is not None and (not file.is_file() or file.stat().st_size == 0):
        raise StorageError(f"storage {url!r}: there are no studies yet; {makes}")
    try:
        studies = Studies(url)
    except StorageError as error:
        if "readonly" not in str(error):  # which is what a database says where Optuna's tables are still to be made
            raise
        raise StorageError(f"storage {url!r}: there are no studies in it; {makes}") from error
    if not studies.names:
        raise StorageError(f"storage {url!r}: there are no studies in it; {makes}")
    return studies
