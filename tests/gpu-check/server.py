"""A small inference server: a model behind the standard library's HTTP server.

POST /eager     one forward pass, launch by launch
POST /graph     the same as one CUDA graph
POST /capture   captures that graph (so that a tracer may watch)
POST /launches  many tiny launches; answers with the ns that one took on the host
POST /profile?begin, /profile?end=FILE   CUPTI on and off, by PyTorch's profiler

`server.py [MODULE]` takes its model from a module, `model_torch` where none is named. Prints
`listening PORT` when it serves. Ends when standard input does.
"""

import importlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def handler_of(model):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            path, _, query = self.path.partition("?")
            with model.lock:
                match path:
                    case "/eager" | "/graph":
                        answer = model.infer(path[1:])
                    case "/capture":
                        answer = model.capture() or {}
                    case "/launches":
                        answer = model.launches()
                    case "/profile":
                        answer = model.profile(query)
                    case _:
                        self.send_error(404)
                        return
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


def main():
    model = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "model_torch").Model()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(model))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening {server.server_address[1]}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
