"""Slots, batches and drafts: tests 1 to 4."""

import random

from client import N_CLIENTS
from texts import GREEDY, GRID, SAMPLED, request, script, words


def same(got, want, what):
    assert got.choices == want.choices, (what, got.choices, want.choices)


def test_01_one_answer_for_identical_prompts(run):
    server = run.server
    for how, n in ((GREEDY, 2), (SAMPLED, N_CLIENTS)):
        body = request(words(70, n), 40, how)
        want = server.cold(body)
        server.forget()
        for answer in server.at_once([body] * n):
            same(answer, want, n)
    # Codewords: what a client is told depends on its own prompt alone.
    text = "The password of the host {} is {}. The password of the host {} is"
    code = "alpha bravo tango zulu kilo delta oscar hotel".split()
    bodies = [request(text.format(i, word, i), 24, SAMPLED) for i, word in enumerate(code)]
    want = [server.cold(body) for body in bodies]
    server.forget()
    for _ in range(2):
        for i, answer in enumerate(server.at_once(bodies)):
            same(answer, want[i], code[i])


def test_02_slots_used_again(run):
    body = request(words(50, 1000), 40, SAMPLED)
    fresh = run.start()
    want = fresh.ask(body)
    hash_of = fresh.state(want)[0]
    for what in ("finished", "cancelled", "failed", "preempted"):
        before = request(words(300, 1001), 120, GREEDY)
        if what == "finished":
            fresh.ask(before)
        elif what == "cancelled":
            stream = fresh.stream(before)
            next(stream.events())
            stream.close()
        elif what == "failed":
            fresh.refusal("POST", "/v1/completions", {**before, "temperature": -1})
        else:
            stream = fresh.stream({**before, "max_tokens": 400})
            events = stream.events()
            next(events)
            fresh.preempt(stream.id)
            for _ in events:
                pass
            stream.close()
        fresh.forget()
        got = fresh.ask(body)
        same(got, want, what)
        assert fresh.state(got)[0] == hash_of, what
    for i in range(20 if run.quick else 95):
        fresh.ask(request(words(20 + i % 40, 2000 + i), 4))
    same(fresh.ask(body), want, "the 100th")
    fresh.stop()


def test_03_any_number_of_drafts(run):
    server, most = run.server, run.draft_tokens
    for seed in range(3 if run.quick else 12):
        body = request(words(20 + seed, 3000 + seed), 100, SAMPLED if seed % 2 else GREEDY)
        want = server.cold(body)
        hash_of, ids = server.state(want)
        answer = ids[20 + seed:]
        rng = random.Random(seed)
        counts = []
        for _ in range(40):
            n = rng.randrange(most + 1)
            counts.append((n, rng.randrange(n + 1)))
        # At least two stand, then none is drafted.
        counts[10:14] = [(most, most), (0, 0), (most, 2), (0, 0)]
        steps, accepted, drafted = script(answer, counts)
        got = server.ask({**body, "scripted_drafts": steps, "draft_tokens": most})
        same(got, want, seed)
        assert server.state(got)[0] == hash_of, seed
        assert (got.accepted, got.report["drafted"]) == (accepted, drafted), (got.report, accepted)


def test_04_drafts_at_the_edges_of_ring_and_grid(run):
    server, most = run.server, run.draft_tokens
    patterns = [[(most, n)] for n in sorted({0, 1, most - 1, most})]
    # One-token steps between; the same shape with another number that stands.
    patterns += [[(most, most), (0, 0), (most, 1), (0, 0), (0, 0)], [(1, 1), (1, 0)]]
    lengths = range(GRID, 2 * GRID, 5 if run.quick else 1)
    for length in lengths:
        body = request(words(length, 4000 + length), 3 * GRID + 5)
        want = server.cold(body)
        hash_of, ids = server.state(want)
        scripts = [script(ids[length:], pattern) for pattern in patterns]
        server.forget()
        bodies = [{**body, "scripted_drafts": steps, "draft_tokens": most}
                  for steps, _, _ in scripts]
        for (_, accepted, _), got in zip(scripts, server.at_once(bodies)):
            same(got, want, (length, accepted))
            assert got.accepted == accepted, (got.report, accepted)
            assert server.state(got)[0] == hash_of, length
    # Real drafters, and all at once.
    body = request("The purpose of this chapter is to", 90, SAMPLED)
    want = server.cold(body)
    for got in server.at_once([{**body, "draft": draft} for draft in run.drafters * 2]):
        same(got, want, "drafters")
