#!/usr/bin/env python3
"""Holds the GPU's results (bench/results/h200_*.json), layers and whole models, to
bench/targets.json: fails if a cell misses its `least` or was not measured, and lists every `goal`
that is missed."""
import argparse
import json
import pathlib
import sys

import gpu_results
import serve_results

TARGETS = gpu_results.RESULTS.parent / "targets.json"


def check(targets, cells):
    """Three lists of lines: least missed, not measured, goal missed."""
    missed, absent, goals = [], [], []
    for name, target in targets["cells"].items():
        cell = cells.get(name, {"skipped": "no such cell in the results"})
        us = cell.get("us")
        if us is None:
            absent.append(f"{name}: {cell.get('skipped') or cell.get('failed')}")
            continue
        least, goal = target.get("least"), target.get("goal")
        if least is not None and us > least:
            missed.append(f"{name}: {us:.4g} us, least {least:g} ({us / least:.2f} of it; "
                          f"{target.get('from', 'target')})")
        if goal is not None and us > goal:
            goals.append(f"{name}: {us:.4g} us, goal {goal:g} ({us / goal:.2f} of it)")
    for ratio in targets.get("ratios", []):
        goals += check_ratio(ratio, cells)
    return missed, absent, goals


def check_serve(targets, models):
    """The same lists for whole models; here more is better."""
    missed, absent, goals = [], [], []
    for target in targets.get("serve", []):
        cells = models.get(target["model"], {})
        name = f"{target['model']}: {target['cell']}"
        got = serve_results.target_value(target, cells)
        if got is None:
            absent.append(name)
            continue
        what = "x" if "over" in target else f" {target['value']}"
        if got < target["least"]:
            missed.append(f"{name}: {got:.2f}{what}, least {target['least']:g}")
        elif got < target["goal"]:
            goals.append(f"{name}: {got:.2f}{what}, goal {target['goal']:g}")
    return missed, absent, goals


def check_ratio(ratio, cells):
    """Verifying a window over a shorter one: a goal for every batch from min_batch on."""
    lines = []
    for name, cell in cells.items():
        if (cell["way"], cell["dtype"], cell["window"]) != ("replay", ratio["dtype"],
                                                           ratio["window"]):
            continue
        over = cells.get(name.replace(f"/T{ratio['window']}/", f"/T{ratio['over']}/"), {})
        if cell["batch"] < ratio["min_batch"] or "us" not in cell or "us" not in over:
            continue
        got = cell["us"] / over["us"]
        if got > ratio["goal"]:
            lines.append(f"{name} over T{ratio['over']}: {got:.2f}, goal {ratio['goal']}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=pathlib.Path, default=gpu_results.RESULTS)
    parser.add_argument("--targets", type=pathlib.Path, default=TARGETS)
    arguments = parser.parse_args()
    targets = json.loads(arguments.targets.read_text())
    missed, absent, goals = check(targets, gpu_results.cells(arguments.results))
    for lines, more in zip((missed, absent, goals),
                           check_serve(targets, serve_results.models(arguments.results))):
        lines += more
    for title, lines in (("least missed", missed), ("not measured", absent),
                         ("goal missed", goals)):
        print(f"{title}: {len(lines)}")
        for line in lines:
            print(f"  {line}")
    for line in gpu_results.stale(arguments.results):
        print(f"stale: {line}")
    n = len(targets["cells"]) + len(targets.get("serve", []))
    print(f"{n - len(missed) - len(absent)} of {n} cells reach their least")
    return 1 if missed or absent else 0


if __name__ == "__main__":
    sys.exit(main())
