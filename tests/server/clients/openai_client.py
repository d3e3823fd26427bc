#!/usr/bin/env python3
"""The `openai` package against a running server: openai_client.py --url http://127.0.0.1:8000

Not part of `make test`: needs `pip install openai`. Start the server with --draft ngram.
"""
import json
import sys

import checks
import openai

TOOLS = [{"type": "function", "function": {
    "name": "package_version", "description": "Version of a Debian package",
    "parameters": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}},
                   "required": ["name"], "additionalProperties": False}}}]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is apt?"}]


def main():
    client = openai.OpenAI(base_url=checks.arguments().url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    n_checks = 0

    def check(condition, what):
        nonlocal n_checks
        n_checks += 1
        if not condition:
            sys.exit(f"FAILED: {what}")

    asked = {"model": model, "prompt": "The purpose of", "max_tokens": 24, "seed": 3}
    whole = client.completions.create(**asked, logprobs=2)
    check(whole.choices[0].text, "a completion has text")
    check(len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens, "logprobs")
    parts = [c.choices[0].text for c in client.completions.create(**asked, stream=True)]
    check("".join(parts) == whole.choices[0].text, "stream = non-stream")

    chat = {"model": model, "messages": MESSAGES, "max_completion_tokens": 30, "seed": 4}
    whole = client.chat.completions.create(**chat, n=2, logprobs=True, top_logprobs=2)
    check(len(whole.choices) == 2, "two choices")
    check(whole.usage.prompt_tokens_details.cached_tokens >= 0, "cached_tokens")
    text, usage = "", None
    for chunk in client.chat.completions.create(**chat, stream=True,
                                                stream_options={"include_usage": True}):
        text += "".join(c.delta.content or "" for c in chunk.choices)
        usage = chunk.usage or usage
    check(text == whole.choices[0].message.content, "chat: stream = non-stream")
    check(usage.total_tokens > 0, "usage in the stream")

    forced = client.chat.completions.create(**{**chat, "max_completion_tokens": 200}, tools=TOOLS,
                                            tool_choice="required")
    call = forced.choices[0].message.tool_calls[0]
    check(forced.choices[0].finish_reason == "tool_calls", "finish_reason tool_calls")
    check("name" in json.loads(call.function.arguments), "a tool call with its arguments")
    deltas = client.chat.completions.create(**{**chat, "max_completion_tokens": 200}, tools=TOOLS,
                                            tool_choice="required", stream=True)
    calls = [t for c in deltas for choice in c.choices for t in choice.delta.tool_calls or []]
    check(calls[0].function.arguments == call.function.arguments, "the same call in a stream")
    answered = client.chat.completions.create(
        **{**chat, "messages": MESSAGES + [forced.choices[0].message.model_dump(exclude_none=True),
           {"role": "tool", "tool_call_id": call.id, "content": "2.6"}]}, tools=TOOLS)
    check(answered.choices[0].finish_reason in ("stop", "length", "tool_calls"), "a tool's result")

    schema = {"type": "object", "properties": {"kind": {"enum": ["deb", "rpm"]},
              "sizes": {"type": "array", "items": {"type": "integer", "maximum": 999, "minimum": 0},
                        "maxItems": 3}}, "required": ["kind", "sizes"], "additionalProperties": False}
    structured = client.chat.completions.create(
        **{**chat, "max_completion_tokens": 200}, response_format={
            "type": "json_schema", "json_schema": {"name": "package", "schema": schema}})
    value = json.loads(structured.choices[0].message.content)
    check(value["kind"] in ("deb", "rpm") and len(value["sizes"]) <= 3, "json_schema")

    stream = client.completions.create(**{**asked, "max_tokens": 2000}, stream=True)
    next(iter(stream))
    stream.close()  # cancels
    for status, error, arguments in (
            (400, openai.BadRequestError, {"temperature": -1}),
            (404, openai.NotFoundError, {"model": "other"})):
        try:
            client.completions.create(**{**asked, **arguments})
            check(False, f"{arguments} is refused")
        except error as e:
            check(e.status_code == status, f"status {status}")
    try:
        client.embeddings.create(model=model, input="x")
        check(False, "embeddings are refused")
    except openai.APIStatusError as e:
        check(e.status_code == 501, "status 501")
    print(f"openai {openai.__version__}: {n_checks} checks passed")


if __name__ == "__main__":
    main()
