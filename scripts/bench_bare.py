"""The anchor of `bench submit`: what a bare Flask endpoint costs that does one INSERT."""

import os
import uuid

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from sqlalchemy import JSON, Column, MetaData, String, Table, Uuid, create_engine, insert

app = Flask(__name__)
engine = create_engine(os.environ["COMFYFLEET_CENTRAL_URL"], pool_size=8)
table = Table(
    "bench_bare",
    MetaData(),
    Column("id", Uuid, primary_key=True),
    Column("effect", String),
    Column("inputs", JSON),
)
table.metadata.create_all(engine)
engine.dispose()


@app.get("/healthz")
def healthz() -> ResponseReturnValue:
    return jsonify(status="ok")


@app.post("/api/ai-jobs")
def submit() -> ResponseReturnValue:
    body = request.get_json()
    row = {"id": uuid.uuid4(), "effect": body["effect_id"], "inputs": body["inputs"]}
    with engine.begin() as connection:
        connection.execute(insert(table), row)
    return jsonify(id=str(row["id"]), status="queued"), 201
