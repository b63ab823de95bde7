"""spanprobe on a physical GPU, against CUPTI: PyTorch behind a small HTTP server.

Needs an NVIDIA driver, a Python with PyTorch, root, and the built spanprobe beside this file or named
by --spanprobe; no network, no compiler. Takes about three minutes. Without a GPU it says
`SKIPPED: reason` and ends with 0; with one it ends with 1 where something that was demanded is missed.

Runs: `separate` compares counts of a run under spanprobe with those of another under CUPTI; `combined`
has both at once and compares each request's bounds with CUPTI's times; then what a launch costs, and
throughput, in alternations.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median

import compare

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 90
MODES = ("eager", "graph")


def unable(python, spanprobe):
    """Why nothing can be checked here; None where it can."""
    if not pathlib.Path(spanprobe).is_file():
        return f"spanprobe is not built: {spanprobe} is not there"
    if os.geteuid() != 0:
        return "not root: eBPF programs cannot be loaded"
    if not pathlib.Path("/proc/driver/nvidia/version").exists() and not any(
            pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return "no NVIDIA driver on this machine"
    ask = "import torch; print(torch.cuda.is_available(), torch.__version__)"
    try:
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{python}: {error}"
    if said.returncode != 0:
        last = said.stderr.strip().splitlines()[-1:] or ["it failed"]
        return f"no PyTorch in {python}: {last[0]}"
    if not said.stdout.startswith("True"):
        return f"PyTorch sees no GPU ({said.stdout.strip()})"
    return None


def wait_for(stream, wanted, what):
    """The first line that has the words; the rest is read and forgotten, so that nothing blocks."""
    found, heard = threading.Event(), []

    def read():
        for line in stream:
            heard.append(line.rstrip())
            del heard[:-200]
            if all(word in line for word in wanted):
                found.set()
        found.set()

    threading.Thread(target=read, daemon=True).start()
    if not found.wait(PATIENCE_S):
        raise TimeoutError(f"{what} did not come: {heard[-5:]}")
    line = next((line for line in heard if all(word in line for word in wanted)), None)
    if line is None:
        raise RuntimeError(f"{what} did not come: {heard[-5:]}")
    return line


class Server:
    """The server, and one connection to it."""

    def __init__(self, python, model):
        self.process = subprocess.Popen([python, str(HERE / "server.py"), model], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(wait_for(self.process.stdout, ["listening "], "the server").split()[1])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(self, path):
        self.connection.request("POST", path, body=b"{}")
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {body[:200]!r}")
        return json.loads(body)

    def ask_each(self, count):
        for mode in MODES:
            for _ in range(count):
                self.ask(f"/{mode}")

    def rate(self, mode, seconds):
        """Requests per second of one client that waits for each answer."""
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            self.ask(f"/{mode}")
            count += 1
        return count / (time.monotonic() - begin)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextlib.contextmanager
def traced(spanprobe, server, lines=None):
    """spanprobe, attached while the block runs; its JSON lines are put into `lines`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "timelines.jsonl"
        process = subprocess.Popen(
            [spanprobe, "run", "--beside", "--quiet", "--pid", str(server.process.pid),
             "--jsonl", str(file)],
            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            wait_for(process.stderr, ["tracing ", " process"], "spanprobe")
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)
        if process.returncode != 0:
            raise RuntimeError(f"spanprobe ended with {process.returncode}")
        if lines is not None:
            lines += [json.loads(line) for line in file.read_text().splitlines()]


@contextlib.contextmanager
def profiled(server, trace):
    """CUPTI's account of the block is put into `trace`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "trace.json"
        server.ask("/profile?begin")
        yield
        server.ask(f"/profile?end={file}")
        trace.update(json.loads(file.read_text()))


def counts_and_bounds(spanprobe, server, count):
    """The separate runs and the combined one."""
    alone, both, trace, both_trace = [], [], {}, {}
    # The graph is captured under trace, so that its nodes are known.
    with traced(spanprobe, server, alone):
        server.ask("/capture")
        server.ask_each(count)
    with profiled(server, trace):
        server.ask_each(count)
    with traced(spanprobe, server, both), profiled(server, both_trace):
        server.ask_each(count)
    ours, theirs = compare.timelines_of(alone), compare.requests_of(trace)
    beside, with_both = compare.timelines_of(both), compare.requests_of(both_trace)
    return {
        "separate": {"counts": compare.compare_counts(ours, theirs)},
        "combined": {"counts": compare.compare_counts(beside, with_both),
                     "bounds": compare.compare_bounds(beside, with_both)},
        "lost": sum(not timeline["complete"] for timeline in ours + beside),
    }


def costs(spanprobe, server, alternations, seconds):
    """What a launch costs, and throughput, without and with."""
    launches, rates = [], {mode: [] for mode in MODES}
    for _ in range(alternations):
        plain = server.ask("/launches")["ns_per_launch"]
        before = {mode: server.rate(mode, seconds) for mode in MODES}
        with traced(spanprobe, server):
            launches.append((plain, server.ask("/launches")["ns_per_launch"]))
            for mode in MODES:
                rates[mode].append((before[mode], server.rate(mode, seconds)))
    return {
        "launch_ns": {"none": median([plain for plain, _ in launches]),
                      "spanprobe": median([traced for _, traced in launches]),
                      "added": median([traced - plain for plain, traced in launches])},
        "throughput_ratio": {mode: compare.paired_ratio(pairs) for mode, pairs in rates.items()},
    }


def machine(spanprobe, python):
    """On what this was measured."""
    ask = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))"
    said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    torch, cuda, device = said.stdout.strip().split(" ", 2)
    try:
        driver = pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        driver = "unknown"
    version = subprocess.run([spanprobe, "--version"], capture_output=True, text=True, check=True)
    return {"spanprobe": version.stdout.split()[-1], "kernel": os.uname().release, "torch": torch,
            "cuda": cuda, "device": device, "driver": driver}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spanprobe", default=str(HERE / "spanprobe"))
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--out", type=pathlib.Path, help="write the report here too")
    parser.add_argument("--model", default="model_torch", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=50, help="of each kind and run")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each throughput run")
    return parser.parse_args()


def main():
    args = arguments()
    report = {}
    # Another model is for trying this script itself.
    if args.model == "model_torch":
        if reason := unable(args.python, args.spanprobe):
            print(f"SKIPPED: gpu-check: {reason}", flush=True)
            return 0
        report["machine"] = machine(args.spanprobe, args.python)
    doctor = subprocess.run([args.spanprobe, "doctor"], capture_output=True, text=True, check=False)
    print(doctor.stdout, flush=True)
    server = Server(args.python, args.model)
    try:
        report |= counts_and_bounds(args.spanprobe, server, args.requests)
        report |= costs(args.spanprobe, server, args.alternations, args.seconds)
    finally:
        server.end()
    report["failures"] = compare.failures(report)
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text)
    for failure in report["failures"]:
        print(f"failed: {failure}")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
