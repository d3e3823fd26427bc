"""Reads the results of replayssm-bench serve on the GPU: whole models, bench/results/h200_serve_*.json."""
import gpu_results


def files(folder=gpu_results.RESULTS):
    return [gpu_results.load(path) for path in sorted(folder.glob("h200_serve_*.json"))]


def models(folder=gpu_results.RESULTS):
    """model -> name of a cell -> cell. Cells of other sources than the headline's are in a file of
    their own, h200_serve_MODEL_more.json; no cell is in both."""
    found = {}
    for data in files(folder):
        cells = found.setdefault(data["model"], {})
        for cell in data["cells"]:
            if cell["name"] in cells:
                raise ValueError(f"{data['model']}: {cell['name']} is in two files")
            cells[cell["name"]] = {**cell, "source_hash": data["source_hash"]}
    return found


def plain_name(cell):
    """What a cell is compared with: plain decoding without speculation, fp32 state."""
    return f"plain/fp32/T1/A1.0/B{cell['batch']}/C{cell['context']}"


def ratio(cell, over):
    """Tokens a second of one cell over another's; None unless both were measured, with the same
    sources."""
    if not all(c and "ms" in c for c in (cell, over)) or cell["source_hash"] != over["source_hash"]:
        return None
    return cell["tokens_per_second"] / over["tokens_per_second"]


def speed_up(cell, cells):
    """Tokens a second over plain decoding's, as ratio()."""
    if not cell or "ms" not in cell:  # of a cell that was skipped nothing but its name is known
        return None
    return ratio(cell, cells.get(plain_name(cell)))


def target_value(target, cells):
    """What a target of bench/targets.json speaks of; None if it was not measured."""
    cell = cells.get(target["cell"])
    if "over" in target:
        return ratio(cell, cells.get(target["over"]))
    return cell[target["value"]] if cell and "ms" in cell else None
