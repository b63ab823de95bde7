"""A server of the standard library with dynamic batching: a thread per connection, one batcher.

Each handler thread queues its request and waits for an event. One thread takes what is queued, at
most BATCH requests, waits up to WAIT_S for more, and does one GPU step for all of them.
"""

import json
import queue
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import model
import oracle

BATCH = 8
WAIT_S = 0.002
# How long requests in flight have to end after the signal.
GRACE_S = 10

_queue = queue.Queue()


class Item:
    """A request on its way to the batcher and back."""

    def __init__(self, work, record):
        self.work, self.record = work, record
        self.done = threading.Event()
        self.error = None


def take():
    """A batch: the request that came first, and those that are there or come soon."""
    items = [_queue.get()]
    deadline = time.monotonic() + WAIT_S
    while len(items) < BATCH:
        try:
            items.append(_queue.get(timeout=max(0, deadline - time.monotonic())))
        except queue.Empty:
            break
    return items


def together(works):
    """What one step does for all: all their bytes, and as much of the rest as any wants."""
    return model.Work(
        h2d=sum(work.h2d for work in works),
        d2h=sum(work.d2h for work in works),
        pinned=all(work.pinned for work in works),
        blocking=any(work.blocking for work in works),
        **{
            name: max(getattr(work, name) for work in works)
            for name in ("launches", "kernel_ns", "cpu_ns", "lock_ns", "sleep_ns", "dep_ns")
        },
    )


def batch_forever():
    while True:
        items = take()
        error = None
        try:
            with oracle.shared([item.record for item in items]):
                model.step(together([item.work for item in items]))
        except Exception as failure:
            error = failure
        for item in items:
            item.error = error
            item.done.set()


class InFlight:
    """Counts the requests that are being answered, so that the end can wait for them."""

    def __init__(self):
        self.count, self.changed = 0, threading.Condition()

    def __enter__(self):
        with self.changed:
            self.count += 1

    def __exit__(self, *_):
        with self.changed:
            self.count -= 1
            self.changed.notify_all()

    def wait(self, seconds):
        with self.changed:
            self.changed.wait_for(lambda: self.count == 0, seconds)


_in_flight = InFlight()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.serve("GET", self.get)

    def do_POST(self):
        self.serve("POST", self.post)

    def serve(self, method, endpoint):
        with _in_flight:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            rid = self.headers.get("X-Request-Id") or parse_qs(url.query).get("rid", [""])[0]
            record = oracle.begin(method, url.path, rid, self.client_address[1])
            status = 0
            try:
                status, answer = endpoint(url.path, body, rid, record)
                self.reply(status, rid, answer)
            finally:
                oracle.end(record, status)

    def get(self, path, _body, _rid, _record):
        if path != "/healthz":
            return 404, {"error": "not found"}
        return 200, {"status": "ok"}

    def post(self, path, body, rid, record):
        if path != "/infer":
            return 404, {"error": "not found"}
        try:
            work = model.Work(**json.loads(body)).check()
        except (TypeError, ValueError) as error:
            return 400, {"error": str(error)}
        item = Item(work, record)
        _queue.put(item)
        item.done.wait()
        if item.error:
            return 500, {"error": str(item.error)}
        return 200, model.answer(rid, work)

    def reply(self, status, rid, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if rid:
            self.send_header("X-Request-Id", rid)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def run(listener):
    """Serves on a socket that listens already, until SIGTERM or SIGINT."""
    server = ThreadingHTTPServer(listener.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener

    def stop(*_):
        # It waits for the loop that this very thread runs.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    threading.Thread(target=batch_forever, name="batcher", daemon=True).start()
    server.serve_forever(poll_interval=0.1)
    server.socket.close()
    _in_flight.wait(GRACE_S)
