"""Starts one of the Python servers on a free port and prints `listening PORT` first.

The port is bound and listened on here, so a client may connect as soon as the line is out; its
first request waits until the server is up. The servers themselves are unmodified.
"""

import argparse
import glob
import os
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def listen(args):
    """A listening socket on which asyncio sets TCP_NODELAY.

    It does so where the socket says that it is TCP: not with `uvicorn --fd`, which takes every
    socket for a Unix one, nor with one that uvicorn binds for several workers. Nagle's algorithm
    would then add 40 ms to most answers.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((args.host, args.port))
    listener.listen(2048)
    listener.set_inheritable(True)
    print("listening", listener.getsockname()[1], flush=True)
    return listener


def serve_flask(args):
    """Becomes gunicorn, which takes the socket over by its number."""
    listener = listen(args)
    command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}"]
    command += ["--workers", str(args.workers), "--worker-class", args.worker_class]
    if args.worker_class == "gthread":
        command += ["--threads", str(args.threads or 4)]
    command += ["--chdir", HERE]
    command += ["--log-level", args.log_level, "--no-control-socket", "flask_app:app"]
    os.execv(sys.executable, command)


def serve_fastapi(args):
    """Runs uvicorn as its own command line does, with the socket handed to it."""
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    config = uvicorn.Config(
        "fastapi_app:app",
        workers=args.workers,
        loop=args.loop,
        http=args.http,
        log_level=args.log_level,
        access_log=False,
    )
    listener = listen(args)
    if args.workers > 1:
        Multiprocess(config, sockets=[listener]).run()
    else:
        uvicorn.Server(config).run(sockets=[listener])


def serve_batch(args):
    """Runs the standard library's server, with the socket handed to it."""
    import batch_app

    batch_app.run(listen(args))


def serve_tinygrad(args):
    """Becomes tinygrad's server as published, which binds the port that it is given by itself.

    It binds to every address of the machine, and does not listen before its model is warm: until
    then connections are refused. This socket, which never listens, keeps the port from others.
    """
    import nvidia

    import tiny_gguf

    if not os.path.exists(args.model):
        tiny_gguf.write(args.model)
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((args.host, args.port))
    holder.set_inheritable(True)
    port = holder.getsockname()[1]
    # NVIDIA's compiler and its headers, where their packages put them.
    [compiler] = [
        found for path in nvidia.__path__ for found in glob.glob(f"{path}/*/lib/libnvrtc.so.*")
    ]
    libraries = os.path.dirname(compiler)
    paths = [libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(path for path in reversed(paths) if path)
    os.environ["CUDA_PATH"] = os.path.dirname(libraries)
    os.environ["DEV"] = "CUDA"
    print("listening", port, flush=True)
    command = [sys.executable, "-m", "tinygrad.llm", "--model", os.path.abspath(args.model)]
    os.execv(sys.executable, [*command, "--max_context", "512", "--serve", str(port)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=["flask", "fastapi", "batch", "tinygrad"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--http", choices=["h11", "httptools"], default="h11")
    parser.add_argument("--log-level", default="warning")
    parser.add_argument("--oracle", help="write the oracle's JSON lines here")
    parser.add_argument("--threads", type=int, help="size of FastAPI's thread pool, or of gthread's")
    parser.add_argument("--worker-class", choices=["sync", "gthread"], default="sync")
    parser.add_argument("--dependency", help="HOST:PORT of the server that dep_ns asks")
    parser.add_argument("--model", default="tiny.gguf", help="tinygrad's; made where it is missing")
    parser.add_argument("--no-gpu", action="store_true", help="sleep instead of calling the driver")
    args = parser.parse_args()
    if args.oracle:
        os.environ["FIXTURE_ORACLE"] = os.path.abspath(args.oracle)
    if args.threads:
        os.environ["FIXTURE_THREADS"] = str(args.threads)
    if args.dependency:
        os.environ["FIXTURE_DEPENDENCY"] = args.dependency
    if args.no_gpu:
        os.environ["FIXTURE_NO_GPU"] = "1"
    serve = {
        "flask": serve_flask,
        "fastapi": serve_fastapi,
        "batch": serve_batch,
        "tinygrad": serve_tinygrad,
    }
    serve[args.server](args)


if __name__ == "__main__":
    main()
