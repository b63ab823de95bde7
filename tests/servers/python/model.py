"""The "model" of the Python servers: a step on the GPU, called through NVIDIA's cuda-bindings.

Everything is created when it is first used, in the process and on the thread that uses it, so that
pre-forking servers work. With FIXTURE_NO_GPU set, a step sleeps instead.
"""

import ctypes
import http.client
import os
import threading
import time
from dataclasses import dataclass

import oracle

NO_GPU = bool(os.environ.get("FIXTURE_NO_GPU"))
# HOST:PORT of the server that `dep_ns` asks.
DEPENDENCY = os.environ.get("FIXTURE_DEPENDENCY")

# Runs for as many nanoseconds as its parameter says; a simulated driver goes by the entry's name.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry cudasim_busy(
    .param .u64 ns
)
{
    .reg .pred %more;
    .reg .u64 %start, %now, %ns;
    ld.param.u64 %ns, [ns];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %ns;
    @%more bra AGAIN;
    ret;
}
\0"""

MAX_BYTES = 1 << 28
MAX_LAUNCHES = 100_000


@dataclass
class Work:
    """What a request asks for."""

    h2d: int = 65536
    d2h: int = 4096
    launches: int = 20
    kernel_ns: int = 50_000
    pinned: bool = True
    blocking: bool = False
    reply: int = 0
    chunks: int = 1
    # Tasks of /gather.
    parts: int = 3
    # What a step does on the host before its driver calls: uses the CPU, holds the one lock,
    # sleeps, waits for another server.
    cpu_ns: int = 0
    lock_ns: int = 0
    sleep_ns: int = 0
    dep_ns: int = 0

    def check(self):
        """Refuses what is out of range."""
        for name, top in [
            ("h2d", MAX_BYTES),
            ("d2h", MAX_BYTES),
            ("reply", MAX_BYTES),
            ("launches", MAX_LAUNCHES),
            ("chunks", MAX_LAUNCHES),
            ("parts", 256),
            ("kernel_ns", 10**11),
            ("cpu_ns", 10**11),
            ("lock_ns", 10**11),
            ("sleep_ns", 10**11),
            ("dep_ns", 10**11),
        ]:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= top:
                raise ValueError(f"{name} is not a number from 0 to {top}")
        return self


class DriverError(RuntimeError):
    """A driver call that failed."""


def call(function, *args):
    """Makes a driver call and returns its results without the status."""
    status, *results = function(*args)
    if status != 0:
        raise DriverError(f"{function.__name__}: {status.name}")
    return results[0] if results else None


class _Process:
    """What a process has: the driver, the primary context, the kernel."""

    def __init__(self):
        from cuda.bindings import driver

        self.pid = os.getpid()
        self.driver = driver
        call(driver.cuInit, 0)
        device = call(driver.cuDeviceGet, 0)
        self.context = call(driver.cuDevicePrimaryCtxRetain, device)
        call(driver.cuCtxSetCurrent, self.context)
        self.module = call(driver.cuModuleLoadData, PTX)
        self.function = call(driver.cuModuleGetFunction, self.module, b"cudasim_busy")


_lock = threading.Lock()
_process = None


def _this_process():
    global _process
    with _lock:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


class _Thread:
    """What a thread has: a stream, and buffers that grow."""

    def __init__(self, process):
        self.process = process
        driver = process.driver
        call(driver.cuCtxSetCurrent, process.context)
        self.stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.device = self.device_size = 0
        self.host = {}

    def device_buffer(self, size):
        if size > self.device_size:
            if self.device_size:
                call(self.process.driver.cuMemFree, self.device)
            self.device = call(self.process.driver.cuMemAlloc, size)
            self.device_size = size
        return self.device

    def host_buffer(self, direction, pinned, size):
        key = (direction, pinned)
        old, old_size, keep = self.host.get(key, (0, 0, None))
        if size <= old_size:
            return old
        if pinned:
            if old_size:
                call(self.process.driver.cuMemFreeHost, old)
            new, keep = call(self.process.driver.cuMemHostAlloc, size, 0), None
        else:
            keep = ctypes.create_string_buffer(size)
            new = ctypes.addressof(keep)
        self.host[key] = (new, size, keep)
        return new


_local = threading.local()


def _this_thread():
    process = _this_process()
    thread = getattr(_local, "thread", None)
    if thread is None or thread.process is not process:
        thread = _local.thread = _Thread(process)
    return thread


_the_lock = threading.Lock()


def _use_cpu(ns):
    """Pure Python, so that the interpreter's lock is held but for its switches."""
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end:
        pass


def _ask_dependency(ns):
    """Asks over a connection that the thread keeps; once more when it was closed meanwhile."""
    if not DEPENDENCY:
        raise ValueError("dep_ns without FIXTURE_DEPENDENCY")
    for attempt in (0, 1):
        connection = getattr(_local, "dependency", None)
        if connection is None:
            connection = _local.dependency = http.client.HTTPConnection(DEPENDENCY)
        try:
            connection.request("POST", f"/infer?plan=sleep:{ns}", body=b"")
            answer = connection.getresponse()
            answer.read()
        except (http.client.HTTPException, OSError):
            connection.close()
            _local.dependency = None
            if attempt:
                raise
            continue
        if answer.status != 200:
            raise RuntimeError(f"the dependency answered {answer.status}")
        return


def _host_part(name, function, ns):
    if ns:
        before = time.monotonic_ns()
        function(ns)
        oracle.host(name, before, time.monotonic_ns())


def _hold_lock(ns):
    before = time.monotonic_ns()
    with _the_lock:
        acquired = time.monotonic_ns()
        _use_cpu(ns)
    oracle.host("lock", before, acquired)
    oracle.host("hold", acquired, time.monotonic_ns())


def step(work):
    """What is to be done on the host; then copies in, launches, copies out, and waits."""
    _host_part("cpu", _use_cpu, work.cpu_ns)
    if work.lock_ns:
        _hold_lock(work.lock_ns)
    _host_part("sleep", lambda ns: time.sleep(ns / 1e9), work.sleep_ns)
    _host_part("dep", _ask_dependency, work.dep_ns)
    before = time.monotonic_ns()
    if NO_GPU:
        time.sleep(work.launches * work.kernel_ns / 1e9)
    else:
        _gpu_step(work)
    oracle.step(before, time.monotonic_ns(), work.launches)


def _gpu_step(work):
    thread = _this_thread()
    driver, stream = thread.process.driver, thread.stream
    device = thread.device_buffer(max(work.h2d, work.d2h, 1))
    if work.h2d:
        host = thread.host_buffer("in", work.pinned, work.h2d)
        if work.blocking:
            call(driver.cuMemcpyHtoD, device, host, work.h2d)
        else:
            call(driver.cuMemcpyHtoDAsync, device, host, work.h2d, stream)
    params = ((work.kernel_ns,), (ctypes.c_uint64,))
    for _ in range(work.launches):
        call(
            driver.cuLaunchKernel,
            thread.process.function,
            *(1, 1, 1),
            *(1, 1, 1),
            0,
            stream,
            params,
            0,
        )
    if work.d2h:
        host = thread.host_buffer("out", work.pinned, work.d2h)
        if work.blocking:
            call(driver.cuMemcpyDtoH, host, device, work.d2h)
        else:
            call(driver.cuMemcpyDtoHAsync, host, device, work.d2h, stream)
    call(driver.cuStreamSynchronize, stream)


def answer(rid, work):
    """The body of a reply: the same bytes for the same request."""
    return {"rid": rid, "launches": work.launches, "output": "x" * work.reply}
