"""An ordinary FastAPI application: endpoints on the thread pool, on the loop, and a streamed one.

FIXTURE_THREADS sets the size of the thread pool that `def` endpoints run on (40 when unset).
"""

import asyncio
import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic.dataclasses import dataclass

import model
import oracle

THREADS = int(os.environ.get("FIXTURE_THREADS") or 0)


@contextlib.asynccontextmanager
async def lifespan(_app):
    if THREADS:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    yield


api = FastAPI(lifespan=lifespan)
Work = dataclass(model.Work)


def checked(work):
    try:
        return work.check()
    except ValueError as error:
        raise HTTPException(400, str(error)) from error


@api.get("/healthz")
async def healthz():
    return {"status": "ok"}


@api.post("/infer")
def infer(work: Work, response: Response, rid: str = "", x_request_id: str = Header("")):
    checked(work)
    model.step(work)
    return answered(work, response, x_request_id or rid)


def answered(work, response, rid):
    response.headers["X-Request-Id"] = rid
    return model.answer(rid, work)


@api.post("/gather")
async def gather(work: Work, response: Response, rid: str = "", x_request_id: str = Header("")):
    """Several steps at once, each on a thread of the pool."""
    checked(work)
    await asyncio.gather(*(asyncio.to_thread(model.step, work) for _ in range(work.parts)))
    return answered(work, response, x_request_id or rid)


@api.post("/inline")
async def inline(work: Work, response: Response, rid: str = "", x_request_id: str = Header("")):
    """The step on the loop itself: a mistake that servers make."""
    checked(work)
    model.step(work)
    return answered(work, response, x_request_id or rid)


@api.post("/to_thread")
async def to_thread(work: Work, response: Response, rid: str = "", x_request_id: str = Header("")):
    """One step on a thread of the pool."""
    checked(work)
    await asyncio.to_thread(model.step, work)
    return answered(work, response, x_request_id or rid)


@api.post("/stream")
async def stream(work: Work, rid: str = "", x_request_id: str = Header("")):
    checked(work)

    async def events():
        for index in range(work.chunks):
            await asyncio.to_thread(model.step, work)
            yield f"data: {json.dumps({'chunk': index})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(
        events(),
        media_type="text/event-stream",
        headers={"X-Request-Id": x_request_id or rid, "Cache-Control": "no-store"},
    )


app = oracle.asgi(api)
