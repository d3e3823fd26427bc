"""The GPU part of docs/benchmarks.md, out of bench/results/h200_*.json."""
import textwrap

import gpu_results

WINDOWS = (1, 4, 8)  # in the document; the JSON has more
BATCHES = (1, 32, 256, 1024)
KINDS = (("plain", "plain or snapshots"), ("activation_replay", "activation replay"),
         ("joint_advance", "joint advance"))


def cell_text(cell, fraction):
    """`90.5 (0.80)`: microseconds and, if asked for, the fraction of the floor; `-` without one."""
    if cell is None or "us" not in cell:
        return "-"
    digits = 1 if cell["us"] < 100 else 0
    text = f"{cell['us']:.{digits}f}"
    return f"{text} ({cell['floor_fraction']:.2f})" if fraction else text


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] +
                     ["| " + " | ".join(row) + " |" for row in rows])


def best(cells):
    """The fastest of some cells that were measured, None without one."""
    return min((c for c in cells if "us" in c), key=lambda c: c["us"], default=None)


def wrapped(lines):
    """A list, wrapped as the rest of the document is."""
    return "\n".join(textwrap.fill(line, 100, initial_indent="- ", subsequent_indent="  ",
                                   break_long_words=False, break_on_hyphens=False)
                     for line in lines)


def shape_tables(shape, cells, peers):
    """Two tables of one shape: replay beside the peers, and our own baselines."""
    mine = {(c["way"], c["dtype"], c["window"], c["batch"]): c
            for c in cells if c["shape"] == shape}
    points = sorted({(batch, window) for _, _, window, batch in mine
                     if window in WINDOWS and batch in BATCHES})

    def get(way, dtype, window, batch):
        if way == "plain" and window > 1:
            way = "snapshots"
        return mine.get((way, dtype, window, batch))

    def peer(kind, dtypes, window, batch):
        return best([c for c in peers if (c["shape"], c.get("kind"), c["window"], c["batch"]) ==
                     (shape, kind, window, batch) and c["dtype"] in dtypes])

    first, second = [], []
    for batch, window in points:
        point = [str(batch), str(window)]
        replay = [get("replay", dtype, window, batch) for dtype in ("fp32", "fp16", "bf16", "int8")]
        beside = [peer(kind, dtypes, window, batch)
                  for kind, dtypes in (("plain", ("fp32",)), ("plain", ("fp16", "bf16")),
                                       ("replay", ("fp32",)), ("replay", ("fp16", "bf16")),
                                       ("replay", ("int8",)))]
        first.append(point + [cell_text(c, True) for c in replay] +
                     [cell_text(c, False) for c in beside])
        second.append(point + [cell_text(get(kind, dtype, window, batch), False)
                               for kind, _ in KINDS for dtype in ("fp32", "fp16")])
    head = ["batch", "T", "replay fp32", "fp16", "bf16", "int8", "best plain peer, fp32",
            "16 bits", "best replay peer, fp32", "16 bits", "int8"]
    baselines = ["batch", "T"] + [text for _, name in KINDS for text in (name + ", fp32", "fp16")]
    return table(head, first), table(baselines, second)


def run_lines(shards):
    """Where and when: one line for each distinct machine and date."""
    lines = dict.fromkeys(
        f"{run['card']}, driver {run['driver']}, CUDA {run['cuda']}, {run['date']}: `"
        f"{run['command']}`; read {run['read_bytes_per_second'] / 1e12:.2f} TB/s, copy "
        f"{run['copy_bytes_per_second'] / 1e12:.2f} TB/s (sources {shard['source_hash']})."
        for shard in shards for run in shard["runs"])
    return wrapped(lines)


def peer_lines(peers):
    """What the peers are and where they ran; their prefill, which has no table."""
    lines = dict.fromkeys(
        f"Peers: {run['card']}, {run['date']}, torch {run['torch']}, Triton {run['triton']}, "
        f"{', '.join(run['packages'])}, ReplaySSM {run['replayssm_commit'][:9]}."
        for run in peers["runs"])
    sweeps = [f"{cell['shape']} {cell['us'] / 1000:.2f} ms" for cell in peers["cells"]
              if cell.get("kind") == "sweep" and "us" in cell]
    if sweeps:
        lines["Prefill of 16 x 2,048 tokens by flash-linear-attention's chunked kernel: " +
              ", ".join(sweeps) + "."] = None
    return wrapped(lines)


def document(folder=gpu_results.RESULTS):
    shards = gpu_results.shards(folder)
    if not shards:
        return "Not measured yet."
    cells = list(gpu_results.cells(folder).values())
    peers = gpu_results.peers(folder)
    out = [run_lines(shards), peer_lines(peers), "",
           "![Bandwidth of the replay steps against the floor](img/roofline_h200.svg)", "",
           "Microseconds per step, with the share of the floor in brackets; `-`: no kernel, or not "
           "measured."]
    for shape, model in {shard["shape"]: shard["model"] for shard in shards}.items():
        first, second = shape_tables(shape, cells, peers["cells"])
        out += ["", f"{model}", "", first, "", f"{model}, our baselines", "", second]
    return "\n".join(out)
