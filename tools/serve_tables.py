"""Whole models on the GPU: the tables of docs/benchmarks.md and the picture of speed over batch."""
import gpu_results
import serve_results
from gpu_tables import table, wrapped

# name in the legend -> (state, dtype, window), colour
LINES = {"replay, T = 1": ("replay", "fp32", 1),
         "snapshot per draft, T = 4": ("snapshots", "fp32", 4),
         "replay, T = 4": ("replay", "fp32", 4)}
COLOURS = dict(zip(LINES, ("#1f5fa8", "#c2571a", "#2f7d4f")))
TITLE = "Output tokens/s relative to plain decoding without speculation (= 1), by batch"
SUBTITLE = "one H200, bf16 weights, fp32 states, context 1,024; T = 4: 3 of 4 tokens per window are accepted"
CONTEXT = 1024  # of the picture and of the latency tables
LATENCY_BATCHES = (1, 8, 32, 128, 512)
PANEL, GAP, LEFT, TOP, BOTTOM = 320, 40, 56, 104, 52


def run_lines(data):
    return [f"{model['model']}: {run['card']}, CUDA {run['cuda']}, {run['date']} (sources "
            f"{model['source_hash']})." for model in data for run in model["runs"]]


def row_of(cell, cells):
    ratio = serve_results.speed_up(cell, cells)
    parts, floor = cell["parts_ms"], cell["floor_ms"]
    split = [f"{parts[part]:.2f} ({floor[part]:.2f})" for part in ("weights", "state", "kv")]
    state = cell["state"].replace("_", " ")
    if cell["name"].startswith("exact/"):
        state += ", exact"
    return [state, cell["dtype"], str(cell["window"]),
            f"{cell['accepted']:.1f}", str(cell["batch"]), f"{cell['context']:,}",
            f"{cell['tokens_per_second']:,.0f}",
            "-" if ratio is None else f"{ratio:.2f}x", f"{cell['ms']:.2f}",
            f"{cell['predicted_ms']['total']:.2f}", f"{cell['ms_p99']:.2f}", *split,
            f"{parts['rest']:.2f}", f"{cell['floor_fraction']:.2f}"]


HEAD = ["state", "dtype", "T", "accepted", "batch", "context", "tokens/s",
        "over plain", "ms per step", "predicted",
        "p99", "weights (floor)", "state (floor)", "KV (floor)", "rest", "share of the floor"]


def latency_table(cells):
    rows = []
    for cell in cells:
        accepted = cell["accepted"]
        rows.append([cell["dtype"], str(cell["batch"]), str(cell["window"]), f"{accepted:.1f}", f"{cell['steps']:,}",
                     f"{cell['ms_p50']:.2f}", f"{cell['ms_p99']:.2f}",
                     f"{cell['ms_p50'] / accepted:.2f}", f"{cell['ms_p99'] / accepted:.2f}",
                     f"{cell['tokens_per_second']:,.0f}"])
    return table(["checkpoint", "batch", "T", "accepted", "steps", "ms per step", "p99", "ms per token", "p99",
                  "tokens/s"], rows)


def document(folder=gpu_results.RESULTS):
    data = serve_results.files(folder)
    if not data:
        return "Not measured yet."
    out = [wrapped(run_lines(data)), "",
           "![Whole models over plain decoding, by batch](img/serve_h200.svg)"]
    for model, cells in serve_results.models(folder).items():
        measured = [c for c in cells.values() if "ms" in c]
        measured.sort(key=lambda c: (c["context"], c["batch"], c["window"], c["state"] != "plain", c["state"],
                                     c["dtype"]))
        out += ["", model, "", table(HEAD, [row_of(c, cells) for c in measured])]
        latency = [c for c in measured if c["state"] == "replay" and c["context"] == CONTEXT
                   and c["window"] in (1, 4) and c["batch"] in LATENCY_BATCHES
                   and not c["name"].startswith("exact/")]
        if latency:
            out += ["", f"{model}, latency:", "", latency_table(latency)]
        skipped = [f"{name}: {c['skipped']}" for name, c in cells.items() if "skipped" in c]
        if skipped:
            out += ["", "Not run:", "", wrapped(skipped)]
    return "\n".join(out)


def text(x, y, words, anchor="middle", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
            f"{words}</text>")


def points_of(cells, line):
    """(batch, speed-up) of a line of the picture."""
    wanted = (*line, CONTEXT)
    found = {}
    for cell in cells.values():
        ratio = serve_results.speed_up(cell, cells)
        if ratio and (cell["state"], cell["dtype"], cell["window"], cell["context"]) == wanted:
            found[cell["batch"]] = ratio
    return sorted(found.items())


def panel(x0, y0, title, lines, batches, most):
    def x_of(batch):
        return x0 + 20 + batches.index(batch) * (PANEL - 40) / max(1, len(batches) - 1)

    def y_of(ratio):
        return y0 - ratio / most * PANEL

    out = [f'<rect x="{x0}" y="{y0 - PANEL}" width="{PANEL}" height="{PANEL}" fill="none" '
           'stroke="#999"/>', text(x0 + PANEL / 2, y0 - PANEL - 10, title),
           text(x0 + PANEL / 2, y0 + 36, "batch")]
    for batch in batches:
        out.append(text(x_of(batch), y0 + 16, batch))
    step = 0.5
    for i in range(int(most / step) + 1):
        y = y_of(i * step)
        colour = "#555" if i * step == 1 else "#eee"
        out += [f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL}" y2="{y:.1f}" stroke="{colour}"/>',
                text(x0 - 6, y + 4, f"{i * step:g}", "end")]
    for name, points in lines.items():
        places = [(x_of(batch), y_of(ratio)) for batch, ratio in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" '
                   'stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[name]}"/>'
                for x, y in places]
    return out


def picture(folder=gpu_results.RESULTS):
    """Tokens/s over plain decoding without speculation, one panel per model; None without
    results."""
    panels = {}
    for model, cells in serve_results.models(folder).items():
        lines = {name: points_of(cells, line) for name, line in LINES.items()}
        if any(len(line) > 1 for line in lines.values()):
            panels[model] = lines
    if not panels:
        return None
    width, height = max(840, LEFT + len(panels) * (PANEL + GAP)), TOP + PANEL + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>',
           text(LEFT, 22, TITLE, "start", 15), text(LEFT, 42, SUBTITLE, "start")]
    x = LEFT + 4
    for name, colour in COLOURS.items():
        out += [f'<circle cx="{x}" cy="62" r="4" fill="{colour}"/>', text(x + 10, 66, name, "start")]
        x += 40 + 7 * len(name)
    for i, (model, lines) in enumerate(panels.items()):
        points = [point for line in lines.values() for point in line]
        batches = sorted({batch for batch, _ in points})
        most = max(1.5, *(ratio for _, ratio in points)) * 1.1
        out += panel(LEFT + i * (PANEL + GAP), TOP + PANEL, model, lines, batches, most)
    return "\n".join(out + ["</svg>"]) + "\n"
