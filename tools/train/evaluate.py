#!/usr/bin/env python3
"""Held-out figures and samples of the demo models.

Bits per byte: the negative log2 likelihood of every held-out token, the end-of-text marks
included, over the bytes of the held-out text; rows of --length tokens, each read from an empty
state. Two yardsticks on the same text: gzip -9, and an order-3 byte model (three bytes of
context, counted on the training text, interpolated in the manner of Witten and Bell).
"""

import argparse
import gzip
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from export import load_ours

PROMPTS = [
    "# Opening files\n\nThe function opens the file whose name is the string pointed to by",
    "# Error handling\n\nIf the connection to the server is lost while a transaction is open,",
    "<|im_start|>user\nHow do I create a branch in Git?<|im_end|>\n<|im_start|>assistant\n",
]


def rows_of(tokens, length):
    count = (len(tokens) - 1) // length
    ids = torch.from_numpy(tokens[:count * length + 1].astype(np.int64))
    return ids[:-1].view(count, length), ids[1:].view(count, length)


@torch.no_grad()
def token_bits(model, tokens, length, device, draft=None):
    """Bits a token; share where the first choices of model and draft agree; MTP figures."""
    ids, target = rows_of(tokens, length)
    bits = count = agree = mtp_bits = mtp_hits = mtp_count = 0
    for i in range(0, len(ids), 8):
        x, y = ids[i:i + 8].to(device), target[i:i + 8].to(device)
        hidden = model.hidden(x)
        logits = model.head(hidden).float()
        bits += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
        count += y.numel()
        if draft is not None:
            agree += (draft.head(draft.hidden(x)).argmax(-1) == logits.argmax(-1)).sum().item()
        if hasattr(model, "mtp"):
            # The head reads the true next token; its guess is compared with the main model's
            # own first choice one position later, which is what speculation accepts.
            ahead = model.head(model.mtp(model.embed(y), hidden)).float()[:, :-1]
            mtp_bits += F.cross_entropy(ahead.flatten(0, 1), y[:, 1:].flatten(),
                                        reduction="sum").item()
            mtp_hits += (ahead.argmax(-1) == logits[:, 1:].argmax(-1)).sum().item()
            mtp_count += y[:, 1:].numel()
    out = {"bits_per_token": bits / count / math.log(2), "tokens": count}
    if draft is not None:
        out["draft_agrees"] = agree / count
    if mtp_count:
        out["mtp_bits_per_token"] = mtp_bits / mtp_count / math.log(2)
        out["mtp_agrees"] = mtp_hits / mtp_count
    return out


@torch.no_grad()
def generate(model, tok, prompt, count, stops, device, temperature=0.0, top_k=40):
    """Greedy at temperature 0, else top-k sampling from a fixed seed."""
    ids = tok.encode(prompt, add_special_tokens=False).ids
    start = len(ids)
    gen = torch.Generator().manual_seed(7)
    for _ in range(count):
        x = torch.tensor([ids], device=device)
        logits = model.head(model.hidden(x)[:, -1])[0].float().cpu()
        if temperature:
            best = logits.topk(top_k)
            weights = torch.softmax(best.values / temperature, 0)
            ids.append(int(best.indices[torch.multinomial(weights, 1, generator=gen)]))
        else:
            ids.append(int(logits.argmax()))
        if ids[-1] in stops:
            break
    return tok.decode(ids[start:], skip_special_tokens=False)


def order3_bits(train, held):
    """Mean bits a byte of the interpolated order-3 model."""
    def keys(data, order):
        out = np.zeros(len(data) - order, dtype=np.uint32)
        for j in range(order + 1):
            out = (out << np.uint32(8)) | data[j:len(data) - order + j]
        return out

    train, held = (np.frombuffer(x, dtype=np.uint8).astype(np.uint32) for x in (train, held))
    prob = np.full(len(held), 1 / 256)
    for order in range(4):
        grams, counts = np.unique(keys(train, order), return_counts=True)
        contexts, first = np.unique(grams >> np.uint32(8), return_index=True)
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(np.append(first, len(grams)))
        wanted = keys(held, order)

        def look(table, values, key):
            at = np.minimum(np.searchsorted(table, key), len(table) - 1)
            return np.where(table[at] == key, values[at], 0)

        c = look(grams, counts, wanted)
        n = look(contexts, totals, wanted >> np.uint32(8))
        t = look(contexts, kinds, wanted >> np.uint32(8))
        lower = prob[order:]
        mixed = (c + t * lower) / np.maximum(n + t, 1)
        prob[order:] = np.where(n > 0, mixed, lower)
    return float(-np.log2(prob).mean())


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True, help="folder that prepare_data.py wrote")
    ap.add_argument("--models", nargs="*", default=[], help="model folders")
    ap.add_argument("--draft", help="folder of the draft model to compare first choices with")
    ap.add_argument("--yardsticks", action="store_true")
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--limit", type=int, default=0, help="held-out tokens to read, 0 for all")
    ap.add_argument("--sample", type=int, default=100, help="tokens a sample, 0 for none")
    ap.add_argument("--out", help="JSON file for all figures and samples")
    args = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = pathlib.Path(args.data)
    text = (data / "heldout.txt").read_bytes()
    tokens = np.fromfile(data / "heldout.u16", dtype=np.uint16)
    scale = len(tokens) / len(text)
    if args.limit:
        tokens = tokens[:args.limit]
    result = {"heldout_bytes": len(text)}
    if args.yardsticks:
        result["gzip_bits_per_byte"] = 8 * len(gzip.compress(text, 9)) / len(text)
        result["order3_bits_per_byte"] = order3_bits((data / "train.txt").read_bytes(), text)
        print(json.dumps(result), flush=True)
    draft = load_ours(args.draft).to(device) if args.draft else None
    for folder in args.models:
        name = pathlib.Path(folder).name
        model = load_ours(folder).to(device)
        tok = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        stops = {tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")}
        entry = token_bits(model, tokens, args.length, device, draft)
        entry["bits_per_byte"] = entry["bits_per_token"] * scale
        print(name, json.dumps(entry), flush=True)
        entry["samples"] = []
        for prompt in PROMPTS if args.sample else []:
            for heat in (0.0, 0.7):
                text = generate(model, tok, prompt, args.sample, stops, device, heat)
                entry["samples"].append({"prompt": prompt, "temperature": heat, "text": text})
                print("----", prompt, "\n>>>> (%.1f)" % heat, text, flush=True)
        result[name] = entry
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
