"""The prefix cache: tests 5 to 8."""

import concurrent.futures

from cases_drafts import same
from client import N_CLIENTS
from texts import GREEDY, GRID, SAMPLED, cuts, request, words


def test_05_every_length_twice(run):
    server, n_new = run.server, GRID + 4
    server.forget()

    def twice(length):
        body = request(words(length, 5000 + length), n_new)
        cold, warm = server.ask(body), server.ask(body)
        same(warm, cold, length)
        known = cuts(length - 1, run.interval)
        assert cold.cached == 0, (length, cold.report)
        assert warm.cached == max(known, default=0), (length, warm.report, known)
        # Who goes on from the answer starts at its last checkpoint.
        text = server.state(warm)[1]
        more = server.ask(request(text + words(5, length), 1))
        assert more.cached == (len(text) - 1) // GRID * GRID, (length, more.report)

    lengths = range(1, 4 * run.interval + 4, 13 if run.quick else 1)
    with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as pool:
        list(pool.map(twice, lengths))


def test_06_score_and_go_on(run):
    server = run.server
    for length, n in ((GRID - 3, 2 * GRID), (50, 90)):
        prompt = words(length, 6000 + length)
        answer = server.ask(request(prompt, n))
        ids = server.state(answer)[1]
        score = request(ids, 1, prompt_logprobs=2)
        first, again = server.ask(score), server.cold(score)
        same(first, again, "scored again")
        # Each token's logprob as it was generated and as it is read.
        read = [entry[str(token)]["logprob"] for entry, token in
                zip(first.choices[0]["prompt_logprobs"][length:], ids[length:])]
        assert read == answer.choices[0]["logprobs"]["token_logprobs"], (read, answer.choices)
    messages = [{"role": "system", "content": "You answer questions about Debian."}]
    for turn, text in enumerate(["What is apt?", "How do I remove a package?", "Why?", "Thanks."]):
        messages.append({"role": "user", "content": text})
        body = {"messages": messages, "max_tokens": 30, "temperature": 0.7, "seed": 3,
                "logprobs": True, "top_logprobs": 2}
        warm = server.ask(body, "/v1/chat/completions")
        server.quiet()
        more = {**body, "draft": "none"}
        known = server.ask(body, "/v1/chat/completions")
        server.forget()
        cold = server.ask(more, "/v1/chat/completions")
        same(warm, cold, turn)
        same(known, cold, turn)
        assert turn == 0 or warm.cached > 0, warm.report
        server.ask(body, "/v1/chat/completions")
        messages.append({"role": "assistant", "content": cold.choices[0]["message"]["content"]})


def test_07_a_prefix_hit_ten_times(run):
    server = run.server
    prefix = words(3 * run.interval + 7, 7000)
    hash_of = server.state(server.cold(request(prefix, 2)))[0]
    tails = [words(n, 7001 + i) for i, n in enumerate([1, 2, 50] * 3 + [1])]
    bodies = [request(prefix + tail, 20, SAMPLED) for tail in tails]
    want = [server.cold(body) for body in bodies]
    server.forget()
    server.ask(request(prefix, 2))
    for body, cold in zip(bodies, want):
        got = server.ask(body)
        same(got, cold, len(body["prompt"]))
        assert got.cached >= 3 * run.interval, got.report
    again = server.ask(request(prefix, 2))
    assert again.cached >= 3 * run.interval and server.state(again)[0] == hash_of, again.report


def test_08_siblings(run):
    server, interval = run.server, run.interval
    sizes = [5, GRID, GRID + 3, 40, interval - 1, interval, 2 * interval + 9]
    for i, size in enumerate(sizes[::2] if run.quick else sizes):
        shared = words(size, 8000 + size)
        for draft in ("none", "default"):
            bodies = [request(shared + words(interval + 5 + j, 8100 + 10 * i + j), 12, GREEDY,
                              draft=draft) for j in range(3)]
            want = [server.cold(body) for body in bodies]
            server.forget()
            server.ask(bodies[0])
            for body, cold in zip(bodies[1:], want[1:]):
                got = server.ask(body)
                same(got, cold, (size, draft))
                floor = max(cuts(size, interval), default=0)
                assert got.cached >= floor, (size, floor, got.report)
            server.forget()
            for got, cold in zip(server.at_once(bodies), want):
                same(got, cold, (size, draft, "at once"))
