"""Prompts and draft scripts."""

import random

GRID = 16  # B: --grid of the server
WIDTH = 4  # of the demo models' short convolution
N_IDS = 4000  # ids below this one are words

GREEDY = {"temperature": 0, "logprobs": 3, "ignore_eos": True}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "logprobs": 3, "ignore_eos": True}


def words(n, seed):
    """A prompt of n ids; two seeds' prompts share no beginning."""
    rng = random.Random(seed)
    return [seed % N_IDS] + [rng.randrange(N_IDS) for _ in range(n - 1)]


def request(prompt, n_tokens, how=GREEDY, **fields):
    return {"prompt": prompt, "max_tokens": n_tokens, **how, **fields}


def cuts(length, interval):
    """Where a prompt of random words is cut for snapshots."""
    points = set(range(interval, length + 1, interval))
    power = GRID
    while power <= length:
        points.add(power)
        power *= 2
    return {p // GRID * GRID for p in points}


def script(answer, counts):
    """Drafts of a known answer. counts: of each step (drafts, how many of them are right), taken
    round and round. Returns the script and what stands and falls by it."""
    steps, accepted, drafted, i = [], 0, 0, 0
    at = 1  # the prompt's pass gives the first token
    while at < len(answer):
        n, right = counts[i % len(counts)]
        i += 1
        room = len(answer) - at - 1  # a step's last token is no draft
        n, right = min(n, room), min(n, right, room)
        drafts = answer[at:at + right]
        drafts += [(answer[at + j] + 1) % N_IDS for j in range(right, n)]
        steps.append(drafts)
        drafted += n
        accepted += right
        at += right + 1
    return steps, accepted, drafted
