"""The APIs that agents speak: tests 21 and 22."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "clients"))
from agent_reuse import APIS, run_agent  # noqa: E402

HOW = {"temperature": 0.8, "seed": 5}
N_TOKENS = 40


def events(server, path, body):
    """The events of a stream without [DONE]."""
    stream = server.send({**body, "stream": True}, path)
    assert stream.head() == 200
    data = b""
    while (size := int(stream.file.readline(), 16)) > 0:
        data += stream.file.read(size)
        stream.file.readline()
    stream.close()
    return [json.loads(event[event.index(b"data: ") + 6:]) for event in data.split(b"\n\n")[:-1]]


def response_text(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


def test_21_three_ways_to_ask(run):
    server = run.server
    system, first, second = "You answer questions about Debian.", "What is apt?", "Why?"
    chat = {"messages": [{"role": "system", "content": system},
                         {"role": "user", "content": first}], "max_tokens": N_TOKENS, **HOW}
    want = server.call("POST", "/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    assert want
    body = {"input": first, "instructions": system, "max_output_tokens": N_TOKENS, **HOW}
    stored = server.call("POST", "/v1/responses", body)
    assert response_text(stored) == want, (stored, want)
    last = events(server, "/v1/responses", body)
    assert "".join(e["delta"] for e in last if e["type"] == "response.output_text.delta") == want
    assert response_text(last[-1]["response"]) == want
    asked = {"messages": [{"role": "user", "content": first}], "system": system,
             "max_tokens": N_TOKENS, **HOW}
    got = server.call("POST", "/v1/messages", asked)
    assert "".join(block["text"] for block in got["content"]) == want, (got, want)
    assert "".join(e["delta"].get("text", "") for e in events(server, "/v1/messages", asked)
                   if e["type"] == "content_block_delta") == want
    # The second turn: sent whole, and gone on with.
    chat["messages"] += [{"role": "assistant", "content": want},
                         {"role": "user", "content": second}]
    want = server.call("POST", "/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    server.forget()
    follow = server.call("POST", "/v1/responses", {**body, "input": second,
                                                   "previous_response_id": stored["id"]})
    assert response_text(follow) == want, (follow, want)


def test_22_an_agents_run_is_cached(run):
    for seed, api in enumerate(APIS):
        sent, shared, cached = run_agent(f"http://127.0.0.1:{run.server.port}", api, seed,
                                         10 if run.quick else 16, 24)
        assert cached >= 0.95 * shared, (api, sent, shared, cached)
