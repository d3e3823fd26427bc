#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md from bench/results/*.json, between its markers, and the
pictures docs/img/roofline_h200.svg and serve_h200.svg."""
import json
import pathlib
import re

import gpu_results
import gpu_tables
import roofline_svg
import serve_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "img" / "roofline_h200.svg"
SERVE_PICTURE = PICTURE.parent / "serve_h200.svg"
PICTURE_SHAPES = {"qw4b": "Qwen3.5-4B GDN", "nano30b": "Nemotron-3-Nano-30B Mamba-2",
                  "nano4b": "Nemotron-3-Nano-4B Mamba-2"}


def speed_table(rows, value, unit, digits):
    """One line for each (batch, window): the baseline, then the speed-up of each way."""
    cells = {}
    for row in rows:
        key = (row["batch"], row["window"])
        cells.setdefault(key, {})[(row["state"], row["dtype"])] = row
    out = [f"| batch | T | plain or snapshots, fp32 ({unit}) | the same, fp16 | replay fp32 | replay fp16 |"
           " replay int8 |", "|---|---|---|---|---|---|---|"]
    for (batch, window), ways in sorted(cells.items()):
        base = "plain" if window == 1 else "snapshots"
        line = [str(batch), str(window), f"{ways[(base, 'fp32')][value]:.{digits}f}"]
        for way in ((base, "fp16"), ("replay", "fp32"), ("replay", "fp16"), ("replay", "int8")):
            row = ways[way]
            line.append(f"{row[value]:.{digits}f} ({row['speed_up']:.2f}x)")
        out.append("| " + " | ".join(line) + " |")
    return "\n".join(out)


def layers():
    data = json.loads((RESULTS / "cpu_layers.json").read_text())
    out = [f"Read bandwidth in the same run: {data['read_bytes_per_second'] / 1e9:.1f} GB/s."]
    for name in dict.fromkeys(row["layer"] for row in data["layers"]):
        rows = [row for row in data["layers"] if row["layer"] == name]
        out.append(f"\n{name}\n\n" + speed_table(rows, "us", "us", 0))
    return "\n".join(out)


def model():
    out = []
    for path in sorted(RESULTS.glob("cpu_model_*.json")):
        rows = json.loads(path.read_text())["model"]
        name = path.stem.removeprefix("cpu_model_")
        out.append(f"{name}\n\n" + speed_table(rows, "ms", "ms", 2))
    return "\n\n".join(out)


def main():
    text = DOCUMENT.read_text()
    for name, table in (("layers", layers()), ("model", model()), ("gpu", gpu_tables.document()),
                        ("serve", serve_tables.document())):
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text = pattern.sub(lambda m: m.group(1) + table + "\n" + m.group(2), text)
    DOCUMENT.write_text(text)
    cells = gpu_results.cells().values()
    if cells:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(roofline_svg.roofline(cells, PICTURE_SHAPES))
    served = serve_tables.picture()
    if served is not None:
        SERVE_PICTURE.write_text(served)


if __name__ == "__main__":
    main()
