#!/usr/bin/env python3
"""Writes a model folder (bfloat16 safetensors and config.json), compares it with transformers,
and writes the reference logits that the engine's tests read.

The comparison loads the folder with AutoModelForCausalLM in float32 and runs one full forward
without a cache. transformers' Nemotron-H clamps the time step from below in that path, which
the published checkpoints do not; the clamp is taken out first.
"""

import argparse
import json
import os
import pathlib

import torch
from safetensors.torch import load_file, save_file

from configs import CONFIGS
from model import build

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def hub_tensors(model):
    """bfloat16 tensors under the published names."""
    out = {}
    for name, value in model.state_dict().items():
        out[name] = value.detach().to("cpu", torch.bfloat16).contiguous()
    return out


def save_folder(tensors, config, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.safetensors.part"
    save_file(tensors, str(part), metadata={"format": "pt"})
    os.replace(part, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def load_ours(folder):
    """Our own module in float32, from the rounded weights."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text("utf-8"))
    model = build(config)
    tensors = load_file(str(pathlib.Path(folder) / "model.safetensors"))
    model.load_state_dict({k: v.float() for k, v in tensors.items()})
    return model.eval()


@torch.no_grad()
def reference_logits(folder, ids):
    from transformers import AutoModelForCausalLM

    ref = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    for layer in ref.model.layers:
        mixer = getattr(layer, "mixer", None)
        if hasattr(mixer, "time_step_limit"):
            mixer.time_step_limit = (0.0, float("inf"))
    return ref(ids[None], use_cache=False).logits[0].float()


@torch.no_grad()
def compare(folder, ids):
    want = reference_logits(folder, ids)
    model = load_ours(folder)
    got = model.head(model.hidden(ids[None]))[0]
    return (got - want).abs().max().item() / want.abs().max().item(), want


def randomise(model):
    """Moves every vector away from its start, so that no term hides behind a 0 or a 1."""
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim < 2:
                value.add_(torch.randn_like(value) * 0.2)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, choices=sorted(CONFIGS))
    ap.add_argument("--folder", required=True)
    ap.add_argument("--random", action="store_true", help="write random weights first")
    ap.add_argument("--ids", help="uint16 token file for the comparison; random ids if absent")
    ap.add_argument("--offset", type=int, default=0)
    ap.add_argument("--length", type=int, default=150)
    ap.add_argument("--logits", help="safetensors file for ids and reference logits")
    args = ap.parse_args()
    torch.manual_seed(5)
    if args.random:
        model = build(CONFIGS[args.model])
        randomise(model)
        save_folder(hub_tensors(model), CONFIGS[args.model], args.folder)
        print("parameters", sum(p.numel() for p in model.parameters()))
    if args.ids:
        import numpy as np
        data = np.fromfile(args.ids, dtype=np.uint16)[args.offset:args.offset + args.length]
        ids = torch.from_numpy(data.astype("int64"))
    else:
        ids = torch.randint(0, 4000, (args.length,))
    diff, logits = compare(args.folder, ids)
    print("%s: largest difference from transformers %.3g of the largest logit, %d tokens"
          % (args.model, diff, len(ids)))
    if args.logits:
        pathlib.Path(args.logits).parent.mkdir(parents=True, exist_ok=True)
        save_file({"ids": ids, "logits": logits.contiguous()}, args.logits)
    return 0 if diff < 1e-3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
