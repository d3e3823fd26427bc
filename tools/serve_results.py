"""Reads the results of bench serve on the GPU: whole models, bench/results/h200_serve_*.json."""
import gpu_results


def files(folder=gpu_results.RESULTS):
    return [gpu_results.load(path) for path in sorted(folder.glob("h200_serve_*.json"))]


def models(folder=gpu_results.RESULTS):
    """model -> name of a cell -> cell. Cells of other sources than the headline's stand in a file of
    their own, h200_serve_MODEL_more.json; none stands in both."""
    found = {}
    for data in files(folder):
        cells = found.setdefault(data["model"], {})
        for cell in data["cells"]:
            if cell["name"] in cells:
                raise ValueError(f"{data['model']}: {cell['name']} stands in two files")
            cells[cell["name"]] = {**cell, "source_hash": data["source_hash"]}
    return found


def plain_name(cell):
    """What a cell is compared with: plain decoding without speculation, fp32 state."""
    return f"plain/fp32/T1/A1.0/B{cell['batch']}/C{cell['context']}"


def speed_up(cell, cells):
    """Tokens a second over plain decoding's, of the same sources; None without either."""
    plain = cells.get(plain_name(cell), {}) if cell and "ms" in cell else {}
    if "ms" not in plain or plain["source_hash"] != cell["source_hash"]:
        return None
    return cell["tokens_per_second"] / plain["tokens_per_second"]


def target_value(target, cells):
    """What a target of bench/targets.json speaks of; None if it was not measured."""
    cell, over = cells.get(target["cell"], {}), cells.get(target.get("over"), {})
    if "ms" not in cell or ("over" in target and "ms" not in over):
        return None
    if "over" in target:
        return cell["tokens_per_second"] / over["tokens_per_second"]
    return cell[target["value"]]
