"""An ordinary FastAPI application: an endpoint on the thread pool, and a streamed one.

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
    response.headers["X-Request-Id"] = x_request_id or rid
    return model.answer(x_request_id or rid, work)


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
