"""Inference with PyTorch, as anybody would write it: it knows nothing of spanprobe."""

import threading
import time

import torch

LAYERS = 12
WIDTH = 1024
ROWS = 64
TINY_LAUNCHES = 2_000


class Model:
    """A stack of layers: small enough to start at once, with launches enough to be counted."""

    def __init__(self):
        torch.manual_seed(1)
        self.device = torch.device("cuda:0")
        layers = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)]
        self.net = torch.nn.Sequential(*layers).to(self.device).eval()
        self.input = torch.randn(ROWS, WIDTH).pin_memory()
        self.lock = threading.Lock()
        self.requests = 0
        self.graph = None
        self.profiler = None
        with torch.inference_mode():
            for _ in range(3):
                self.net(self.input.to(self.device))
        torch.cuda.synchronize()

    def capture(self):
        """Captures one pass between fixed buffers."""
        self.graph_in = torch.empty(ROWS, WIDTH, device=self.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            self.net(self.graph_in)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(self.graph):
            self.graph_out = self.net(self.graph_in)
        torch.cuda.synchronize()

    def infer(self, mode):
        """One request: copy in, compute, copy out."""
        self.requests += 1
        with torch.profiler.record_function(f"request {mode} {self.requests}"):
            with torch.inference_mode():
                if mode == "graph":
                    self.graph_in.copy_(self.input, non_blocking=True)
                    self.graph.replay()
                    out = self.graph_out.cpu()
                else:
                    out = self.net(self.input.to(self.device, non_blocking=True)).cpu()
        return {"sum": float(out.sum())}

    def launches(self):
        """What one launch costs the host."""
        small = torch.zeros(1, device=self.device)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(TINY_LAUNCHES):
            small.add_(1)
        enqueued = time.perf_counter_ns()
        torch.cuda.synchronize()
        return {"ns_per_launch": (enqueued - begin) / TINY_LAUNCHES}

    def profile(self, query):
        """Switches the profiler on, or off and its trace into a file."""
        if query.startswith("end="):
            torch.cuda.synchronize()
            self.profiler.stop()
            self.profiler.export_chrome_trace(query[len("end="):])
            self.profiler = None
        else:
            kinds = torch.profiler.ProfilerActivity
            self.profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
            self.profiler.start()
            torch.cuda.synchronize()
        return {}
