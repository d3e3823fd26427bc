#!/usr/bin/env python3
"""Prints the tables of docs/benchmarks.md from a folder of results. With --write they replace what
is published: the tables between the document's markers and the pictures beside it."""
import argparse
import json
import pathlib
import re
import sys

import gpu_results
import gpu_tables
import roofline_svg
import serve_tables

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
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


def layers(folder):
    data = json.loads((folder / "cpu_layers.json").read_text())
    out = [f"Read bandwidth in the same run: {data['read_bytes_per_second'] / 1e9:.1f} GB/s."]
    for name in dict.fromkeys(row["layer"] for row in data["layers"]):
        rows = [row for row in data["layers"] if row["layer"] == name]
        out.append(f"\n{name}\n\n" + speed_table(rows, "us", "us", 0))
    return "\n".join(out)


def model(folder):
    out = []
    for path in sorted(folder.glob("cpu_model_*.json")):
        rows = json.loads(path.read_text())["model"]
        name = path.stem.removeprefix("cpu_model_")
        out.append(f"{name}\n\n" + speed_table(rows, "ms", "ms", 2))
    return "\n\n".join(out)


TABLES = {"layers": layers, "model": model, "gpu": gpu_tables.document,
          "serve": serve_tables.document}


def roofline(folder):
    cells = gpu_results.cells(folder).values()
    return roofline_svg.roofline(cells, PICTURE_SHAPES) if cells else None


# A table's picture, under img/ beside the document.
PICTURES = {"gpu": ("roofline_h200.svg", roofline), "serve": ("serve_h200.svg", serve_tables.picture)}


def write(document, tables, folder):
    text = document.read_text()
    for name, table in tables.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, n_found = pattern.subn(lambda m: m.group(1) + table + "\n" + m.group(2), text)
        if n_found != 1:
            raise ValueError(f"{document}: {n_found} places for the table {name}, must be one")
    document.write_text(text)
    for name in tables:
        file, draw = PICTURES.get(name, (None, None))
        picture = draw(folder) if draw else None
        if picture is not None:
            (document.parent / "img").mkdir(exist_ok=True)
            (document.parent / "img" / file).write_text(picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE",
                        help=f"{', '.join(TABLES)}; all of them if none is named")
    parser.add_argument("--results", type=pathlib.Path, default=gpu_results.RESULTS,
                        help="the folder of the results (bench/results)")
    parser.add_argument("--write", action="store_true", help="replace the document's tables")
    parser.add_argument("--document", type=pathlib.Path, default=DOCUMENT,
                        help="that --write changes (docs/benchmarks.md)")
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in TABLES:
            parser.error(f"TABLE {name}: must be {', '.join(TABLES)}")
    try:
        tables = {name: TABLES[name](arguments.results) for name in arguments.tables or TABLES}
        if arguments.write:
            write(arguments.document, tables, arguments.results)
    except (OSError, ValueError) as error:
        sys.exit(f"bench_tables.py: {error}")
    if not arguments.write:
        print("\n\n".join(tables.values()))


if __name__ == "__main__":
    main()
