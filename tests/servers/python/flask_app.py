"""An ordinary Flask application with a GPU step; serve it with gunicorn's workers."""

from flask import Flask, jsonify, request

import model
import oracle

app = Flask(__name__)


@app.get("/healthz")
def healthz():
    return jsonify(status="ok")


@app.post("/infer")
def infer():
    rid = request.headers.get("X-Request-Id") or request.args.get("rid", "")
    try:
        work = model.Work(**request.get_json()).check()
    except (TypeError, ValueError) as error:
        return jsonify(error=str(error)), 400
    model.step(work)
    response = jsonify(model.answer(rid, work))
    response.headers["X-Request-Id"] = rid
    return response


app.wsgi_app = oracle.wsgi(app.wsgi_app)
