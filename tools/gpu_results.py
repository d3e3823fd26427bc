#!/usr/bin/env python3
"""Reads the GPU's results under bench/results: bench_kernels' shards, peers and tests. Run by
itself it names those that were measured with other sources than the present ones."""
import json
import pathlib

from source_hash import source_hash

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench" / "results"


def load(path):
    """The object in a result file; a ValueError names the file if it is none."""
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not an object")
    return data


def shards(folder=RESULTS):
    """bench_kernels' files in order of name."""
    loaded = [load(path) for path in sorted(folder.glob("h200_*_*.json"))]
    return [shard for shard in loaded if "shape" in shard]


def cells(folder=RESULTS):
    """name -> cell, each with its shard's shape and dtype."""
    found = {}
    for shard in shards(folder):
        for cell in shard["cells"]:
            found[cell["name"]] = {**cell, "shape": shard["shape"], "dtype": shard["dtype"]}
    return found


def peers(folder=RESULTS):
    """The result of bench/kernels/peers.py; an empty one without its file."""
    path = folder / "h200_peers.json"
    return load(path) if path.exists() else {"runs": [], "cells": []}


def stale(folder=RESULTS):
    """One line for each result that was measured with other sources than the present ones."""
    tests = source_hash("tests")
    current = {"h200_tests.json": tests, "h200_sanitizer.json": tests,
               "h200_peers.json": source_hash("peers")}
    kernels, serve = source_hash("kernels"), source_hash("serve")
    lines = []
    for path in sorted(folder.glob("h200_*.json")):
        usual = serve if path.name.startswith("h200_serve_") else kernels
        of, here = load(path).get("source_hash"), current.get(path.name, usual)
        if of != here:
            lines.append(f"{path.name}: sources {of}, here {here}")
    return lines


if __name__ == "__main__":
    for line in stale():
        print(f"warning: stale GPU result: {line}")
