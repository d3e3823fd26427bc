#!/usr/bin/env python3
"""Trains one demo model on one GPU for a given number of seconds.

The learning rate follows the clock: a short warm-up, a flat part, then a cosine to nothing that
ends when the time is over. Weights are written to --out in bfloat16 at regular intervals, so a
run that is cut short leaves a usable model.
"""

import argparse
import json
import lzma
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

import model as modules
from configs import CONFIGS
from export import hub_tensors, save_folder
from model import build, compiled


def load_tokens(path, device):
    raw = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint16).astype(np.int16)).to(device)


@compiled
def cross_entropy(logits, target):
    return F.cross_entropy(logits.float(), target)


class Sampler:
    """Draws rows of consecutive tokens; each pass over the data starts at a new shift."""

    def __init__(self, tokens, seed):
        self.tokens = tokens
        self.gen = torch.Generator().manual_seed(seed)
        self.queue = {}

    def rows(self, count, length):
        queue = self.queue.get(length)
        if queue is None or len(queue) < count:
            shift = int(torch.randint(length, (1,), generator=self.gen))
            starts = torch.arange(shift, len(self.tokens) - length - 2, length)
            queue = starts[torch.randperm(len(starts), generator=self.gen)]
        pick, self.queue[length] = queue[:count], queue[count:]
        index = pick.to(self.tokens.device)[:, None]
        index = index + torch.arange(length + 2, device=self.tokens.device)
        return self.tokens[index].long()


def losses(net, rows):
    """Next-token loss, and the second-token loss of the MTP head where there is one."""
    length = rows.shape[1] - 2
    ids, target, second = rows[:, :length], rows[:, 1:length + 1], rows[:, 2:]
    hidden = net.hidden(ids)
    main = cross_entropy(net.head(hidden).flatten(0, 1), target.flatten())
    if not hasattr(net, "mtp"):
        return main, None
    ahead = net.head(net.mtp(net.embed(target), hidden))
    return main, cross_entropy(ahead.flatten(0, 1), second.flatten())


@torch.no_grad()
def held_out_loss(net, tokens, rows=48, length=1024):
    index = torch.arange(rows, device=tokens.device)[:, None] * length
    index = index + torch.arange(length + 2, device=tokens.device)
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        main, ahead = losses(net, tokens[index].long())
    return main.item(), ahead.item() if ahead is not None else float("nan")


def rate(done, step, warmup, flat):
    warm = min(1.0, (step + 1) / warmup)
    if done < flat:
        return warm
    return warm * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - flat) / (1 - flat))))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, choices=sorted(CONFIGS))
    ap.add_argument("--data", required=True, help="folder that prepare_data.py wrote")
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--end-at", type=float, default=0, help="stop at this Unix time at the latest")
    ap.add_argument("--batch-tokens", type=int, default=65536)
    ap.add_argument("--lengths", default="1024,1024,1024,4096", help="cycle of row lengths")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.1, help="weight decay of the matrices")
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--flat", type=float, default=0.4)
    ap.add_argument("--mtp-weight", type=float, default=0.2)
    ap.add_argument("--save-every", type=float, default=120)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    start = time.time()
    budget = args.seconds
    if args.end_at:
        budget = min(budget, args.end_at - start)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    modules.COMPILE["on"] = args.compile
    torch._dynamo.config.recompile_limit = 64
    config = CONFIGS[args.model]
    net = build(config).to(device)
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in net.named_parameters() if p.ndim != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": args.decay},
              {"params": others, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-9,
                            fused=device == "cuda")
    data = pathlib.Path(args.data)
    train = Sampler(load_tokens(data / "train.u16.xz", device), args.seed)
    held = load_tokens(data / "heldout.u16", device)
    lengths = [int(x) for x in args.lengths.split(",")]
    print("%s: %d parameters, %d tokens, ready after %.1f s" % (
        args.model, sum(p.numel() for p in net.parameters()), len(train.tokens),
        time.time() - start), flush=True)

    seen, step, next_save, mark = 0, 0, args.save_every, (0, time.time())
    log = []
    while True:
        elapsed = time.time() - start
        done = elapsed / budget
        if done >= 1:
            break
        for group in opt.param_groups:
            group["lr"] = args.lr * rate(done, step, args.warmup, args.flat)
        length = lengths[step % len(lengths)]
        rows = train.rows(max(1, args.batch_tokens // length), length)
        with torch.autocast(device, dtype=torch.bfloat16):
            main_loss, ahead_loss = losses(net, rows)
        total = main_loss
        if ahead_loss is not None:
            total = total + args.mtp_weight * ahead_loss
        opt.zero_grad(set_to_none=True)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        seen += rows.shape[0] * length
        step += 1
        if step % 50 == 0 or step in (1, 2, 5, 10, 20):
            value = main_loss.item()
            now = time.time()
            speed = (seen - mark[0]) / (now - mark[1])
            mark = (seen, now)
            print("%s step %d  %.0f s  loss %.4f  next %.4f  norm %.2f  %.0f tok/s" % (
                args.model, step, now - start, value,
                ahead_loss.item() if ahead_loss is not None else 0, norm.item(), speed),
                flush=True)
            if not math.isfinite(value):
                raise SystemExit("loss is not finite")
        if elapsed > next_save:
            next_save = elapsed + args.save_every
            save_folder(hub_tensors(net), config, args.out)
            main_value, ahead_value = held_out_loss(net, held)
            log.append([step, seen, round(time.time() - start), main_value, ahead_value])
            print("%s step %d held-out %.4f, second token %.4f" % (
                args.model, step, main_value, ahead_value), flush=True)
    save_folder(hub_tensors(net), config, args.out)
    main_value, ahead_value = held_out_loss(net, held)
    log.append([step, seen, round(time.time() - start), main_value, ahead_value])
    report = {"model": args.model, "steps": step, "tokens": seen,
              "seconds": round(time.time() - start, 1), "arguments": vars(args),
              "card": torch.cuda.get_device_name() if device == "cuda" else "cpu",
              "heldout_loss": main_value, "heldout_second_token_loss": ahead_value,
              "log": log, "columns": ["step", "tokens", "seconds", "loss", "second"]}
    text = json.dumps(report, indent=1)
    (pathlib.Path(args.out) / "train.json").write_text(text + "\n", "utf-8")
    print("%s done: %d steps, %d tokens, held-out %.4f, second token %.4f" % (
        args.model, step, seen, main_value, ahead_value), flush=True)


if __name__ == "__main__":
    main()
