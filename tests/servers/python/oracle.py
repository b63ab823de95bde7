"""The Python servers' own record of the truth, written where FIXTURE_ORACLE says.

These stamps lie beside Python calls, not beside system calls: they trail the system call by up to
milliseconds and bound an instant from one side only. `begin` comes after the server read the
request; `end` after it handed the last byte over (or, where it writes later still, before).
"""

import contextlib
import contextvars
import json
import os
import threading
import time

PATH = os.environ.get("FIXTURE_ORACLE")

_record = contextvars.ContextVar("record", default=None)
_lock = threading.Lock()
_file = None
_pid = None


def _write(record):
    global _file, _pid
    line = json.dumps(record, separators=(",", ":")) + "\n"
    with _lock:
        if _pid != os.getpid():
            # Unbuffered and appending: lines of several processes do not mix.
            _file = open(PATH, "ab", buffering=0)
            _pid = os.getpid()
        _file.write(line.encode())


def _begin(method, path, rid, peer_port):
    return {
        "t": "request",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "rid": rid,
        "method": method,
        "path": path,
        "peer_port": peer_port,
        "begin": time.monotonic_ns(),
        "steps": [],
        "host": [],
        "chunks": [],
    }


def _end(record, status):
    record["end"] = time.monotonic_ns()
    record["status"] = status
    _write(record)


def step(before, after, launches):
    """Notes a GPU step of the request that this code runs for."""
    record = _record.get()
    if record is not None:
        record["steps"].append([threading.get_native_id(), before, after, launches])


def host(name, before, after):
    """Notes what a step did on the host."""
    record = _record.get()
    if record is not None:
        record["host"].append([threading.get_native_id(), name, before, after])


def begin(method, path, rid, peer_port):
    """A record for an application that is neither WSGI nor ASGI; None when not asked for."""
    return _begin(method, path, rid, peer_port) if PATH else None


def end(record, status):
    """Ends what `begin` began."""
    if record is not None:
        _end(record, status)


@contextlib.contextmanager
def shared(records):
    """What this thread does meanwhile is done for every one of these requests."""
    both = {"steps": [], "host": []}
    token = _record.set(both)
    try:
        yield
    finally:
        _record.reset(token)
        for record in records:
            if record is not None:
                record["steps"].extend(both["steps"])
                record["host"].extend(both["host"])


class _Closing:
    """A WSGI body that ends its record when the server closes it, which is after the last write."""

    def __init__(self, body, record, status):
        self.body, self.record, self.status = body, record, status

    def __iter__(self):
        return iter(self.body)

    def close(self):
        if hasattr(self.body, "close"):
            self.body.close()
        _end(self.record, self.status[0])


class Wsgi:
    """WSGI middleware."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        record = _begin(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ.get("HTTP_X_REQUEST_ID", ""),
            int(environ.get("REMOTE_PORT") or 0),
        )
        _record.set(record)
        status = [0]

        def start(line, headers, exc_info=None):
            status[0] = int(line.split(" ", 1)[0])
            return start_response(line, headers, exc_info)

        return _Closing(self.app(environ, start), record, status)


class Asgi:
    """ASGI middleware."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        client = scope.get("client")
        record = _begin(
            scope["method"],
            scope["path"],
            headers.get(b"x-request-id", b"").decode(),
            client[1] if client else 0,
        )
        _record.set(record)
        status = 0

        async def stamped(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and message.get("body"):
                record["chunks"].append(time.monotonic_ns())

        try:
            await self.app(scope, receive, stamped)
        finally:
            _end(record, status)


def wsgi(app):
    """The app, watched if asked for."""
    return Wsgi(app) if PATH else app


def asgi(app):
    """The app, watched if asked for."""
    return Asgi(app) if PATH else app
