#!/usr/bin/env python3
"""Times the peers' kernels as bench_kernels times ours: CUDA graphs over pools several times the
L2, flush phases staggered, mean over whole flush cycles, median of nine replays. Needs torch,
triton, an H200 and .peers/ (tools/fetch_peers.sh). Writes h200_peers.json; cells that stand there
already, measured with these sources, are not measured again."""
import argparse
import datetime
import json
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import time

import torch

import peer_kernels

sys.path.insert(0, str(peer_kernels.ROOT / "tools"))
from source_hash import source_hash  # noqa: E402

WINDOWS = (1, 4, 8)
BATCHES = (1, 32, 256, 1024)
HEADLINE_SHAPES = ("qw4b", "nano30b", "nano4b")
HEADLINE_BATCHES = (1, 32, 256)
GRAPH_US = 2000  # long enough that the ends of a graph do not count
REPLAYS = 9


def all_cells(headline):
    """(name, shape, dtype, peer, window, batch) of every kernel that there is."""
    cells = []
    for shape in HEADLINE_SHAPES if headline else peer_kernels.SHAPES:
        for dtype in peer_kernels.DTYPES:
            for window in WINDOWS:
                for peer in peer_kernels.kernels_of(shape, window, dtype):
                    for batch in HEADLINE_BATCHES if headline else BATCHES:
                        cells.append((shape, dtype, peer, window, batch))
            window, batch = peer_kernels.SWEEP
            cells += [(shape, dtype, peer, window, batch)
                      for peer in peer_kernels.kernels_of(shape, window, dtype)]
    return [("{}/{}/{}/T{}/B{}".format(*cell), *cell) for cell in cells]


def prepare(cell):
    _, shape, dtype, peer, window, batch = cell
    kind, make = peer_kernels.kernels_of(shape, window, dtype)[peer]
    made = make(batch)
    return (kind, None, None) if made is None else (kind, *made)


def time_us(cell, step):
    """Median over replays of a step's mean time."""
    step(0)
    torch.cuda.synchronize()
    if not torch.isfinite(cell.out.float()).all():
        raise ValueError("outputs are not finite")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(cell.n_phases):
        step(i)
    end.record()
    torch.cuda.synchronize()
    guess = begin.elapsed_time(end) * 1e3 / cell.n_phases
    cycles = max(math.ceil(GRAPH_US / (guess * cell.n_phases)),
                 math.ceil(cell.n_pools / cell.n_phases))
    n = cycles * cell.n_phases
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n):
            step(i)
    times = []
    for i in range(REPLAYS + 2):  # two to warm up
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / n)
    return sorted(times[2:])[REPLAYS // 2]


def measure(cell):
    name, shape, dtype, peer, window, batch = cell
    entry = {"name": name, "shape": shape, "dtype": dtype, "peer": peer, "window": window,
             "accepted": peer_kernels.accepted_of(window), "batch": batch}
    try:
        entry["kind"], tensors, step = prepare(cell)
        if step is None:
            entry["skipped"] = "no kernel, or not built"
        else:
            entry["us"] = time_us(tensors, step)
    except torch.OutOfMemoryError:
        entry["skipped"] = "does not fit"
    except Exception as error:  # noqa: BLE001: a peer's failure must not end the run
        entry["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return entry


def compile_cells(cells):
    """A worker's share of the Triton compilations, into the cache on the disk."""
    for cell in cells:
        try:
            _, _, step = prepare(cell)
            if step is not None:
                step(0)
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001: the measurement reports it
            print(f"{cell[0]}: {error}".splitlines()[0], file=sys.stderr)
        torch.cuda.empty_cache()


def warm(cells):
    """Compiles in parallel. Batches above one share ReplaySSM's kernels, so two batches do; vLLM's
    tiles go by batch."""
    few = {}
    for cell in cells:
        _, shape, dtype, peer, window, batch = cell
        if not peer.startswith("flashinfer"):
            few.setdefault((shape, dtype, peer, window,
                            batch if peer == "vllm_triton" else batch == 1), cell)
    n = min(12, os.cpu_count() or 1, len(few))
    if n < 2:
        return
    shares = [list(few.values())[i::n] for i in range(n)]
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        pool.map(compile_cells, shares)


def describe():
    import triton

    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True).stdout.split("\n")[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"date": now.strftime("%Y-%m-%d %H:%M UTC"), "command": " ".join(sys.argv),
            "card": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
            "cuda": torch.version.cuda, "triton": triton.__version__,
            "replayssm_commit": (peer_kernels.PEERS / "replayssm/commit").read_text().strip(),
            "packages": (peer_kernels.PEERS / "versions").read_text().split()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--filter", default="", help="only cells whose name this matches")
    parser.add_argument("--headline", action="store_true", help="only the targets' shapes")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no cell after this time")
    arguments = parser.parse_args()
    start = time.monotonic()
    path = arguments.out / "h200_peers.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    sources = source_hash("peers")
    if data.get("source_hash") != sources:
        data = {"source_hash": sources, "runs": [], "cells": []}
    known = {cell["name"] for cell in data["cells"]}
    cells = [cell for cell in all_cells(arguments.headline)
             if re.search(arguments.filter, cell[0]) and cell[0] not in known]
    data["runs"].append(describe())
    warm(cells)
    print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    n_left = 0
    for cell in cells:
        if time.monotonic() - start > arguments.seconds:
            n_left += 1
            continue
        entry = {**measure(cell), "run": len(data["runs"]) - 1}
        data["cells"].append(entry)
        shown = f"{entry['us']:9.2f} us" if "us" in entry else entry.get("skipped",
                                                                        entry.get("failed"))
        print(f"{entry['name']:44} {shown}", flush=True)
        torch.cuda.empty_cache()
        path.write_text(json.dumps(data, indent=1) + "\n")
    failed = [cell["name"] for cell in data["cells"] if "failed" in cell]
    print(f"{len(cells) - n_left} cells, {len(failed)} failed in all, {n_left} left")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
