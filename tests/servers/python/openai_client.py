"""Load for an OpenAI-compatible server: the `openai` package, as published.

    python openai_client.py --addr 127.0.0.1:PORT --requests 100 --threads 4 --oracle client.jsonl

Threads share one client and take requests in turn. Request N asks for a number of tokens and has a
prompt whose length both follow from N; every `--plain-every`-th is not streamed. Nothing is retried.
The last line of standard output is a summary. Exit codes: 0 all answers right, 1 some not.

The oracle's stamps are CLOCK_MONOTONIC. `connect` has those around the connection's making, `send_before` and `send_after` lie around the sending of the
request, `first_byte` behind the answer's head and `last_byte` behind its end, as the HTTP library
tells them; `chunks` behind each object of the stream as the caller gets it, `tokens` is what the
server says that it generated, or the pieces of text that came.
"""

import argparse
import itertools
import json
import threading
import time

import openai

WORDS = "every request waits for the one before it while this server has a single thread".split()


class Stamps:
    """What the HTTP library tells of the request that this thread makes."""

    def __init__(self):
        self.here = threading.local()

    def begin(self):
        self.here.at = {}
        self.here.port = 0

    def told(self, name, info):
        self.here.at.setdefault(name, time.monotonic_ns())
        if name == "connection.connect_tcp.complete":
            self.here.port = info["return_value"].get_extra_info("client_addr")[1]

    def hook(self, request):
        request.extensions["trace"] = self.told


def ask(client, stamps, number, plain_every):
    """One request; its line of the oracle."""
    stamps.begin()
    words = [WORDS[(number + i) % len(WORDS)] for i in range(1 + number % 7)]
    plain = number % plain_every == plain_every - 1
    tokens = 1 + number % 12
    line = {"chunks": [], "tokens": 0, "error": None, "status": 0}
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": tokens,
        "temperature": [0.0, 0.7][number % 2],
    }
    try:
        if plain:
            answer = client.chat.completions.with_raw_response.create(**asked)
            line["status"] = answer.status_code
            line["tokens"] = answer.parse().usage.completion_tokens
        else:
            usage = number % 3 == 0
            if usage:
                asked["stream_options"] = {"include_usage": True}
            stream = client.chat.completions.create(stream=True, **asked)
            line["status"] = stream.response.status_code
            counted = None
            for chunk in stream:
                line["chunks"].append(time.monotonic_ns())
                line["tokens"] += sum(1 for choice in chunk.choices if choice.delta.content)
                if chunk.usage is not None:
                    counted = chunk.usage.completion_tokens
            if usage and counted != line["tokens"]:
                line["error"] = f"{line['tokens']} tokens came, the server counted {counted}"
        if line["tokens"] != tokens and line["error"] is None:
            line["error"] = f"{line['tokens']} tokens of {tokens}"
    except openai.OpenAIError as error:
        line["error"] = f"{type(error).__name__}: {error}"
    at = stamps.here.at
    line["last_byte"] = time.monotonic_ns()
    connect = [at.get(f"connection.connect_tcp.{name}", 0) for name in ("started", "complete")]
    line["connect"] = connect
    line["local_port"] = stamps.here.port
    line["send_before"] = at.get("http11.send_request_headers.started", 0)
    line["send_after"] = line["sent"] = at.get("http11.send_request_body.complete", 0)
    line["first_byte"] = at.get("http11.receive_response_headers.complete", 0)
    line["chunk_count"] = len(line["chunks"])
    return line


def summary(lines, seconds):
    took = sorted(line["last_byte"] - line["send_before"] for line in lines) or [0]
    errors = [line["error"] for line in lines if line["error"]]
    return {
        "requests": len(lines),
        "errors": len(errors),
        "p50_ns": took[len(took) // 2],
        "p99_ns": took[len(took) * 99 // 100],
        "max_ns": took[-1],
        "rps": len(lines) / seconds,
        "seconds": seconds,
        "first_error": errors[0] if errors else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addr", required=True, help="HOST:PORT")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain-every", type=int, default=10)
    parser.add_argument("--rid-prefix", default="r")
    parser.add_argument("--oracle", required=True)
    args = parser.parse_args()

    stamps = Stamps()
    client = openai.OpenAI(
        base_url=f"http://{args.addr}/v1",
        api_key="none",
        max_retries=0,
        timeout=120,
        http_client=openai.DefaultHttpxClient(event_hooks={"request": [stamps.hook]}),
    )
    numbers = itertools.count()
    taking = threading.Lock()
    lines = []

    def work():
        while True:
            with taking:
                number = next(numbers)
            if number >= args.requests:
                return
            line = ask(client, stamps, number, args.plain_every)
            line |= {"t": "client", "tid": threading.get_native_id(), "seq": number}
            line |= {"rid": f"{args.rid_prefix}{number}", "sends": 1, "bytes_in": 0}
            lines.append(line | {"body_hash": "", "raw_hash": ""})

    before = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(args.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = summary(lines, time.monotonic() - before)
    with open(args.oracle, "w") as file:
        for line in sorted(lines, key=lambda line: line["seq"]):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(json.dumps(found), flush=True)
    raise SystemExit(1 if found["errors"] else 0)


if __name__ == "__main__":
    main()
