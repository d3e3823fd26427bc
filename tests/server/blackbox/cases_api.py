"""What every answer keeps: the last line of the list."""

import os
import re

from cases_drafts import same
from client import ROOT, gather
from texts import GREEDY, SAMPLED, request, script, words

MESSAGE_FIELDS = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "refusal",
                  "tool_call_id", "name"}


def test_16_refusals_and_messages(run):
    server = run.server
    status, error = server.refusal("POST", "/v1/completions",
                                   request(words(run.max_positions + 7, 1), 5))
    assert status == 400 and error["code"] == "context_length_exceeded", error
    for number in (run.max_positions + 7, run.max_positions - 1):
        assert str(number) in error["message"], error
    for empty in ("", []):
        status, error = server.refusal("POST", "/v1/completions", request(empty, 5))
        assert status == 400 and error["param"] == "prompt", error
    messages = [{"role": "user", "content": "Hello."}, {"role": "system", "content": "Be brief."},
                {"role": "assistant", "content": "Hi."}, {"role": "system", "content": "In one word."},
                {"role": "user", "content": "What is dpkg?"}]
    got = server.ask({"messages": messages, "max_tokens": 8}, "/v1/chat/completions")
    assert got.usage["completion_tokens"] > 0, got
    assert server.ask(request(words(20, 2), 5, logit_bias={"7": -100})).usage["completion_tokens"] == 5


def test_17_several_tokens_a_step_change_nothing(run):
    server, most = run.server, run.draft_tokens
    prompt = words(40, 17000)
    plain = server.cold(request(prompt, 80, SAMPLED))
    answer = server.state(plain)[1][40:]
    steps = script(answer, [(most, most), (most, most - 1)])[0]
    text = plain.text
    stops = [text[10:14], text[25:26], text[30:41], "never in the text"]
    for fields in [{"stop": [stop]} for stop in stops] + [{"max_tokens": n} for n in (1, 2, 7, 31)] + [
            {"stop_token_ids": [answer[9]]}, {"n": 3}, {"echo": True},
            {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
            {"logit_bias": {str(answer[3]): -50}}]:
        body = request(prompt, 80, SAMPLED, **fields)
        want = server.cold(body)
        several = {**body, "scripted_drafts": steps, "draft_tokens": most}
        drafted = server.ask(several)
        same(drafted, want, fields)
        assert drafted.usage["completion_tokens"] == want.usage["completion_tokens"], fields
        for one in (body, several):
            choices, usage, _ = gather(server.stream(one))
            for part, whole in zip(choices, want.choices, strict=True):
                assert part["text"] == whole["text"], (fields, part, whole)
                assert part["tokens"] == whole["logprobs"]["token_logprobs"], (fields, part, whole)
                assert part["finish"] == whole["finish_reason"], (fields, part, whole)
            assert usage["completion_tokens"] == want.usage["completion_tokens"], fields


def test_18_text_is_whole_utf8(run):
    server = run.server
    ids = server.ids("😀")
    assert len(ids) > 1, "the tokenizer knows this emoji as one token"
    # The first token of an emoji again and again, with any cap.
    for cap in (1, 2, 5):
        body = request("A smile:", cap, GREEDY, logit_bias={str(ids[0]): 100})
        want = server.cold(body)
        assert "\ufffd" in want.text, want
        choices, _, _ = gather(server.stream(body))
        assert choices[0]["text"] == want.text, (choices, want)
    # A prompt that is cut inside one.
    for n in range(1, len(ids) + 1):
        body = {**request(server.ids("A smile: ") + ids[:n], 3), "echo": True}
        want = server.cold(body)
        assert gather(server.stream(body))[0][0]["text"] == want.text


def test_19_structured_output(run):
    """Grammars, drafts, several clients and the cache at once."""
    server = run.server
    schema = {"type": "object", "required": ["kind", "ok"], "properties": {
        "kind": {"enum": ["deb", "rpm"]}, "ok": {"type": "boolean"}}}
    body = {"messages": [{"role": "user", "content": "Which package?"}], "max_tokens": 60,
            "temperature": 0.7, "seed": 5, "response_format": {
                "type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    if not run.grammars:
        status, _ = server.refusal("POST", "/v1/chat/completions", body)
        assert status == 501, status
        return
    server.forget()
    want = server.ask({**body, "draft": "none"}, "/v1/chat/completions")
    for draft in run.drafters:
        same(server.ask({**body, "draft": draft}, "/v1/chat/completions"), want, draft)


def documented_fields():
    """Field names of the tables in docs/http.md: those of both routes, of completions, of chat; and
    those that are said to be without effect."""
    text = open(os.path.join(ROOT, "docs", "http.md"), encoding="utf-8").read()
    text = text[text.index("## POST /v1/completions"):text.index("**The answer**")]
    tables = [re.findall(r"^\| (`.+?) \| (.+) \|$", part, re.M)
              for part in re.split("^(?:Completions|Chat) alone:$", text, flags=re.M)]
    return [[(name, effect) for names, effect in table for name in re.findall(r"`([\w.]+)`", names)]
            for table in tables]


def test_20_every_field_as_documented(run):
    server = run.server
    both, completions, chat = documented_fields()
    base = {"/v1/completions": {"prompt": "a", "max_tokens": 1},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}],
                                     "max_tokens": 1}}
    known = set()
    for path, fields in (("/v1/completions", both + completions), ("/v1/chat/completions", both + chat)):
        for field, effect in fields:
            name = field.split(".")[0]
            known.add(name)
            # No field takes this.
            body = {**base[path], name: [[{}]]}
            if "." in field:
                body.update({"stream": True, name: {field.split(".")[1]: [[{}]]}})
            if effect.startswith("ignored with a warning"):
                _, headers = server.answer("POST", path, body)
                assert name in headers["x-replayssm-warning"], (field, headers)
                continue
            status, error = server.refusal("POST", path, body)
            assert status == 400 and error["param"].startswith(name), (path, field, error)
        _, headers = server.answer("POST", path, {**base[path], "nobody_knows_this": 1})
        assert "nobody_knows_this" in headers["x-replayssm-warning"], headers
    # And what the parser reads is written down.
    folder = os.path.join(ROOT, "src", "server", "request")
    for file in ("common.cpp", "completion.cpp", "chat.cpp"):
        source = open(os.path.join(folder, file), encoding="utf-8").read()
        for name in re.findall(r'fields\.\w+\("(\w+)"', source):
            assert name in known | MESSAGE_FIELDS, f"{name} is not in docs/http.md"
