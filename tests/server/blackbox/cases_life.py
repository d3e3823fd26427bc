"""Lives of requests: tests 9 to 14."""

import glob
import os
import random
import tempfile
import threading
import time

from cases_drafts import same
from client import HttpError, gather
from texts import GREEDY, SAMPLED, WIDTH, request, words


def leave(stream, n_events):
    """Closes a stream after so many events; 0: at once."""
    if n_events > 0:
        events = stream.events()
        for _ in range(n_events):
            next(events)
    stream.close()


def test_09_cancelled_anywhere(run):
    server = run.server
    short, long = words(90, 9000), words(900, 9001)
    right = server.state(server.cold(request(short, 200)))[1][90:]
    drafts = [right[i + 1:i + 4] for i in range(0, 196, 4)]
    points = [("mid-chunk", request(long, 50), 0), ("after prefill", request(short, 300), 1),
              ("after a token", request(long, 300), 2),
              ("in a verify step", request(short, 200, scripted_drafts=drafts), 3)]
    for what, body, n_events in points:
        plain = {**body, "scripted_drafts": None, "max_tokens": 40}
        longer = {**plain, "prompt": body["prompt"] + words(33, 9002)}
        want, want_longer = server.cold(plain), server.cold(longer)
        server.forget()
        stream = server.stream(body)
        if n_events == 0:
            time.sleep(0.02)
        leave(stream, n_events)
        same(server.ask(plain), want, what)
        same(server.ask(longer), want_longer, what)
        server.quiet()
    # Queued: every place is taken.
    body = request(short, 40)
    want = server.cold(body)
    running = [server.stream(request(words(30, 9100 + i), 600)) for i in range(run.sequences)]
    events = [stream.events() for stream in running]
    for one in events:
        next(one)
    queued = server.stream(body)
    time.sleep(0.05)
    assert server.stats()["queued"] >= 1, server.stats()
    queued.close()
    for stream in running[1:]:
        stream.close()
    n = sum(1 for event in events[0] if event["choices"])
    assert n > 0, "the text that ran beside ends early"
    running[0].close()
    same(server.ask(body), want, "queued")


def flip_byte(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) * 2 // 3)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def test_10_save_kill_restore(run):
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--cache-dir", folder]
        server = run.start(flags)
        more = words(11, 10001)
        wants = {}
        for n in (1, 9, 30):  # the ring is empty, half full, and past its interval
            first = server.ask(request(words(47, 10000 + n), n, SAMPLED))
            server.call("POST", "/v1/sessions", {"name": f"s{n}", "request": first.id})
            ids = server.state(first)[1]
            wants[n] = run.server.cold(request(ids + more, 40, SAMPLED))
        server.kill()
        server = run.start(flags)
        body = request(more, 40, SAMPLED)
        status, _ = server.refusal("POST", "/v1/completions", {**body, "session": "s1"})
        assert status == 404, status
        for n, want in wants.items():
            server.call("POST", "/v1/sessions/restore", {"name": f"s{n}"})
            got = server.ask({**body, "session": f"s{n}"})
            same(got, want, n)
            got = server.ask({**body, "session": f"s{n}", "draft": "ngram"})
            same(got, want, (n, "drafts"))
        server.stop()
        for file in glob.glob(os.path.join(folder, "**", "*.session"), recursive=True):
            flip_byte(file)
        server = run.start(flags)
        for n in wants:
            status, error = server.refusal("POST", "/v1/sessions/restore", {"name": f"s{n}"})
            assert status == 409 and "checksum" in error["message"], (status, error)
        assert server.stats()["refused_corrupt"] == len(wants), server.stats()
        assert server.refusal("POST", "/v1/sessions/restore", {"name": "none"})[0] == 404
        server.stop()


def test_11_split_anywhere(run):
    server, chunk = run.server, run.chunk
    length = 3 * chunk + 5
    body = request(words(length, 11000), 20, SAMPLED)
    want = server.cold(body)
    hash_of = server.state(want)[0]
    splits = [1, WIDTH - 1, WIDTH, chunk - 1, chunk, chunk + 1, 37, length - 1]
    for split in splits[1::3] if run.quick else splits:
        server.forget()
        others = [request(words(2 * chunk + 3, 11001 + i), 30) for i in range(2)]
        for end in [*range(split, length, max(split, 37)), length]:
            part = {**body, "prompt": body["prompt"][:end]}
            if end < length:
                part["max_tokens"] = 1
            got = server.at_once([part, *others])[0]
        same(got, want, split)
        assert server.state(got)[0] == hash_of, split


def test_12_preempted(run):
    server = run.server
    for after in (1, 31) if run.quick else (1, 8, 31, 127):
        for how in ({}, {"prompt_logprobs": 2}):
            # Time enough, that the text still runs when the word to preempt it comes.
            body = request(words(45, 12000 + after), after + 400, SAMPLED, **how)
            server.forget()
            want, _, _ = gather(server.stream({**body, "draft": "none"}))
            stream = server.stream(body)
            seen, preempted = [], [False]

            def watch():
                for event in stream.events():
                    n = sum(len(choice["logprobs"]["token_logprobs"]) if choice["logprobs"] else 0
                            for choice in event["choices"])
                    seen.append((event, n))
                    if not preempted[0] and sum(n for _, n in seen) >= after:
                        server.preempt(stream.id)
                        preempted[0] = True
                    yield event

            replay = type("Seen", (), {"events": lambda self: watch()})()
            got, _, report = gather(replay)
            stream.close()
            assert got == want, (after, how)
            assert report["preemptions"] >= 1, report


def test_13_long_texts(run):
    server = run.server
    body = request(words(450, 13000), 450, GREEDY)
    stepped = server.ask(body)
    ids = server.state(stepped)[1]
    scored = server.cold(request(ids, 1, prompt_logprobs=0))
    read = [entry[str(token)]["logprob"] for entry, token in
            zip(scored.choices[0]["prompt_logprobs"][450:], ids[450:])]
    assert read == stepped.choices[0]["logprobs"]["token_logprobs"]
    # Steps without end, against fresh prefills.
    n_steps, every = (1000, 500) if run.quick else (20000, 1000)
    if n_steps + 100 > run.max_positions:
        n_steps = run.max_positions // every * every - every
    server.forget()
    start = words(60, 13001)
    long = server.ask(request(start, n_steps))
    hash_of, ids = server.state(long)
    marks = range(every, n_steps, every)
    # From what the steps left in the cache, then from nothing.
    warm = []
    for mark in marks:
        got = server.ask(request(ids[:mark], 2))
        assert got.cached > mark - run.interval - 16, (mark, got.report)
        warm.append((got, server.state(got)[0]))
    for mark, (got, hash_at) in zip(marks, warm):
        cold = server.cold(request(ids[:mark], 2))
        same(got, cold, mark)
        assert server.state(cold)[0] == hash_at, mark
    assert server.state(server.cold(request(ids[:-1], 1)))[0] == hash_of


def test_14_sockets_closed(run):
    server = run.server
    witness = request(words(64, 14000), 300)
    want, _, _ = gather(server.stream({**witness, "draft": "none"}))
    n_aborts = 60 if run.quick else 1000
    got, rng = [], random.Random(14)

    def keep_asking():
        while not done.is_set() or not got:
            got.append(gather(server.stream(witness))[0])

    def abort(i):
        body = request(words(rng.choice([3, 60, 700]), 14001 + i % 50), rng.choice([1, 40, 400]),
                       n=1 + i % 2)
        if i % 3 == 0:
            leave(server.stream(body), 1)
        else:
            one = server.stream(body) if i % 3 == 1 else server.send(body)
            time.sleep(rng.random() * 0.02)
            one.close()

    done = threading.Event()
    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        for first in range(0, n_aborts, 10):
            threads = [threading.Thread(target=abort, args=(i,))
                       for i in range(first, min(first + 10, n_aborts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    except HttpError as error:
        raise AssertionError(f"a request was refused: {error}") from error
    finally:
        done.set()
        asking.join()
    assert got and all(one == want for one in got), "a stream changed as others left"
    time.sleep(0.2)
    server.quiet()
    # Not streaming, in prefill and in decode.
    for wait in (0.0, 0.01, 0.1):
        stream = server.send(request(words(900, 14900), 3000))
        stream.close()
        time.sleep(wait)
    time.sleep(0.2)
    server.quiet()
