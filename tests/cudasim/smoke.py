"""NVIDIA's cuda-bindings, unmodified, on the simulated CUDA driver.

Run it with the folder that holds the simulated libcuda.so.1 first on LD_LIBRARY_PATH:

    LD_LIBRARY_PATH=DIR python smoke.py [--seconds N]

It goes once through what the test servers use, checks every result, and prints one line. With
--seconds it repeats the inference-like part for that long.
"""

import argparse
import ctypes
import time

from cuda.bindings import driver as cu

PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry cudasim_busy(.param .u64 ns) { ret; }
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u32 n) { ret; }
\0"""

SIZE = 256 * 1024


def check(result):
    """The values of a call, or an exception."""
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{error.name}: {check(cu.cuGetErrorString(error)).decode()}")
    return values[0] if len(values) == 1 else values


def busy(function, ns, stream):
    """Launches the kernel that runs for as long as it is told."""
    check(
        cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, ((ns,), (ctypes.c_uint64,)), 0)
    )


def elapsed_of(function, stream, start, end, ns):
    """Milliseconds between two events around a busy kernel."""
    check(cu.cuEventRecord(start, stream))
    busy(function, ns, stream)
    check(cu.cuEventRecord(end, stream))
    check(cu.cuEventSynchronize(end))
    return check(cu.cuEventElapsedTime(start, end))


def step(function, stream, host, device, ns):
    """One inference step: input up, kernels, output down, wait."""
    check(cu.cuMemcpyHtoDAsync(device, host, SIZE, stream))
    for _ in range(4):
        busy(function, ns // 4, stream)
    check(cu.cuMemcpyDtoHAsync(host + SIZE, device, SIZE, stream))
    check(cu.cuStreamSynchronize(stream))


def captured(function, add, stream):
    """A graph of two kernels, captured; nothing of it runs meanwhile."""
    check(
        cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    )
    busy(function, 1_000_000, stream)
    arguments = ((0, 0, 0), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32))
    check(cu.cuLaunchKernel(add, 16, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
    graph = check(cu.cuStreamEndCapture(stream))
    _, count = check(cu.cuGraphGetNodes(graph))
    assert count == 2, count
    return graph, check(cu.cuGraphInstantiate(graph, 0))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=0)
    seconds = arguments.parse_args().seconds

    check(cu.cuInit(0))
    device = check(cu.cuDeviceGet(0))
    name = check(cu.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    assert "Simulated" in name, name
    context = check(cu.cuDevicePrimaryCtxRetain(device))
    check(cu.cuCtxSetCurrent(context))
    module = check(cu.cuModuleLoadData(PTX))
    function = check(cu.cuModuleGetFunction(module, b"cudasim_busy"))
    add = check(cu.cuModuleGetFunction(module, b"vector_add"))
    error, *_ = cu.cuModuleGetFunction(module, b"missing")
    assert error == cu.CUresult.CUDA_ERROR_NOT_FOUND, error

    stream = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    host = check(cu.cuMemHostAlloc(2 * SIZE, 0))
    memory = check(cu.cuMemAlloc(SIZE))
    start, end = (check(cu.cuEventCreate(0)) for _ in range(2))

    # Copies really copy.
    ctypes.memset(host, 0x5A, SIZE)
    ctypes.memset(host + SIZE, 0, SIZE)
    step(function, stream, host, memory, 400_000)
    assert ctypes.string_at(host + SIZE, SIZE) == b"\x5a" * SIZE

    # Events see the time that the kernel was told (and what a busy machine adds between calls).
    ms = elapsed_of(function, stream, start, end, 3_000_000)
    assert 3.0 <= ms < 100, ms

    # A launch returns before the kernel is done, a wait does not.
    before = time.monotonic_ns()
    busy(function, 100_000_000, stream)
    launched = time.monotonic_ns()
    error, *_ = cu.cuStreamQuery(stream)
    assert error == cu.CUresult.CUDA_ERROR_NOT_READY, error
    check(cu.cuStreamSynchronize(stream))
    waited = time.monotonic_ns()
    assert launched - before < 90_000_000 and waited - before >= 100_000_000

    # What is captured runs when launched, and only then.
    graph, executable = captured(function, add, stream)
    check(cu.cuEventRecord(start, stream))
    for _ in range(3):
        check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuEventRecord(end, stream))
    check(cu.cuCtxSynchronize())
    ms_graphs = check(cu.cuEventElapsedTime(start, end))
    assert 3.0 <= ms_graphs < 100, ms_graphs

    steps = 0
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        step(function, stream, host, memory, 2_000_000)
        steps += 1

    check(cu.cuGraphExecDestroy(executable))
    check(cu.cuGraphDestroy(graph))
    check(cu.cuMemFree(memory))
    error, *_ = cu.cuMemFree(memory)
    assert error == cu.CUresult.CUDA_ERROR_INVALID_VALUE, error
    check(cu.cuMemFreeHost(host))
    for event in (start, end):
        check(cu.cuEventDestroy(event))
    check(cu.cuStreamDestroy(stream))
    check(cu.cuModuleUnload(module))
    check(cu.cuDevicePrimaryCtxRelease(device))
    print(f"ok: {name}, kernel {ms:.3f} ms, 3 graphs {ms_graphs:.3f} ms, {steps} steps")


if __name__ == "__main__":
    main()
