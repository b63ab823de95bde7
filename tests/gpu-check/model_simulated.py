"""A model on the simulated driver (tests/cudasim): for trying `check.py` where there is no GPU.

What the driver's oracle says takes the place of CUPTI's account, in the same form.
"""

import ctypes
import json
import os
import pathlib
import tempfile
import threading
import time

PTX = b".version 8.0\n.entry cudasim_busy(.param .u64 ns) {}\0"
LAUNCHES = 12
KERNEL_NS = 50_000
H2D_BYTES = 262_144
D2H_BYTES = 4_096
TINY_LAUNCHES = 2_000
PATIENCE_S = 30


class Model:
    """The same requests as `model_torch`'s, as plain driver calls."""

    def __init__(self):
        self.oracle = pathlib.Path(tempfile.mkdtemp()) / "oracle.jsonl"
        # The driver reads its variables in C's environment, at its first call.
        os.environ["CUDASIM_ORACLE"] = str(self.oracle)
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.lock = threading.Lock()
        self.requests, self.stamps = 0, []
        self.graph = ctypes.c_void_p()
        self.context = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.device = ctypes.c_uint64()
        self.host = ctypes.create_string_buffer(H2D_BYTES)
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"cudasim_busy")
        self.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(H2D_BYTES))
        self.infer("eager", counted=False)

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name}: {status}")

    def launch(self, ns):
        time_ns = ctypes.c_uint64(ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(time_ns))
        self.call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters, None)

    def copies(self, between):
        device, size = self.device, ctypes.c_size_t
        self.call("cuMemcpyHtoDAsync_v2", device, self.host, size(H2D_BYTES), self.stream)
        between()
        self.call("cuMemcpyDtoHAsync_v2", self.host, device, size(D2H_BYTES), self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def layers(self):
        for _ in range(LAUNCHES):
            self.launch(KERNEL_NS)

    def capture(self):
        self.call("cuCtxSetCurrent", self.context)
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 0)
        self.layers()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.graph), graph, ctypes.c_uint64(0))

    def infer(self, mode, counted=True):
        self.call("cuCtxSetCurrent", self.context)
        begin = time.monotonic_ns()
        if mode == "graph":
            self.copies(lambda: self.call("cuGraphLaunch", self.graph, self.stream))
        else:
            self.copies(self.layers)
        if counted:
            self.requests += 1
            name = f"request {mode} {self.requests}"
            self.stamps.append((name, begin, time.monotonic_ns()))
        return {"sum": 0}

    def launches(self):
        self.call("cuCtxSetCurrent", self.context)
        begin = time.perf_counter_ns()
        for _ in range(TINY_LAUNCHES):
            self.launch(0)
        enqueued = time.perf_counter_ns()
        self.call("cuStreamSynchronize", self.stream)
        return {"ns_per_launch": (enqueued - begin) / TINY_LAUNCHES}

    def profile(self, query):
        if query.startswith("end="):
            events = annotations(self.stamps) + activities(self.operations())
            pathlib.Path(query[len("end="):]).write_text(json.dumps({"traceEvents": events}))
        self.stamps.clear()
        return {}

    def operations(self):
        """What ran since the first stamp. The driver writes it down a little later."""
        first, last = self.stamps[0][1], self.stamps[-1][1]

        def waited(line):
            """The last request's own wait."""
            return line.get("api") == "cuStreamSynchronize" and line["enter_ns"] >= last

        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            whole = [line for line in self.oracle.read_text().splitlines(True)
                     if line.endswith("\n")]
            lines = [json.loads(line) for line in whole]
            if any(waited(line) for line in lines):
                return [line for line in lines if line["t"] == "op" and line["enqueue_ns"] >= first]
            time.sleep(0.05)
        raise TimeoutError("the oracle is not written")


def event(category, name, start, end, **args):
    return {"ph": "X", "cat": category, "name": name, "ts": start / 1_000,
            "dur": (end - start) / 1_000, "args": args}


def annotations(stamps):
    return [event("user_annotation", *stamp) for stamp in stamps]


NAMES = {"kernel": ("kernel", "cudasim_busy", "cudaLaunchKernel"),
         "h2d": ("gpu_memcpy", "Memcpy HtoD", "cudaMemcpyAsync"),
         "d2h": ("gpu_memcpy", "Memcpy DtoH", "cudaMemcpyAsync")}


def activities(operations):
    events = []
    for op in operations:
        at, number = op["enqueue_ns"], op["id"]
        if op["kind"] == "graph":
            events.append(event("cuda_runtime", "cudaGraphLaunch", at, at, correlation=number))
        if op["kind"] not in NAMES:
            continue
        category, name, call = NAMES[op["kind"]]
        if op["graph"]:
            number = op["graph"]
        else:
            events.append(event("cuda_runtime", call, at, at, correlation=number))
        events.append(event(category, name, op["start_ns"], op["end_ns"], correlation=number,
                            bytes=op["bytes"]))
    return events
