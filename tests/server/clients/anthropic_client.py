#!/usr/bin/env python3
"""The `anthropic` package against a server of run_all.py's model."""
import anthropic
from checks import Checks, arguments
from scripted import forced

TOOL = {"name": "package_version", "description": "Version of a package",
        "input_schema": {"type": "object", "properties": {"name": {"type": "string"}},
                         "required": ["name"], "additionalProperties": False},
        "cache_control": {"type": "ephemeral"}}


def main():
    args = arguments()
    check = Checks(f"anthropic {anthropic.__version__}")
    client = anthropic.Anthropic(base_url=args.url, api_key="none", max_retries=0)
    model = args.answers["model"]
    asked = {"model": model, "max_tokens": 24, "system": [{"type": "text", "text": "Be brief."}],
             "messages": [{"role": "user", "content": "What is apt?"}], "extra_body": {"seed": 3}}
    whole = client.messages.create(**asked)
    check(whole.content[0].type == "text" and whole.content[0].text, "text")
    check(whole.stop_reason in ("end_turn", "max_tokens"), "stop reason")
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(text == whole.content[0].text and final.content[0].text == text, "stream = whole")
    check(final.usage.cache_read_input_tokens > 0, "cached tokens")
    counted = client.messages.count_tokens(
        **{k: asked[k] for k in ("model", "system", "messages")}).input_tokens
    usage = final.usage
    check(counted == usage.input_tokens + usage.cache_read_input_tokens, "count_tokens")
    stopped = client.messages.create(**{**asked, "extra_body": forced(args.answers["text"])},
                                     stop_sequences=["done", "never"])
    check((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "done"), "stops")

    messages = [{"role": "user", "content": "Which apt?"}]
    turn = {"model": model, "max_tokens": 200, "tools": [TOOL], "messages": messages,
            "extra_body": forced(args.answers["call"])}
    first = client.messages.create(**turn)
    check([block.type for block in first.content] == ["thinking", "text", "tool_use"], "blocks")
    check(first.stop_reason == "tool_use" and first.content[2].input == {"name": "apt"}, "the call")
    with client.messages.stream(**turn) as stream:
        kinds = {event.type for event in stream}
        same = stream.get_final_message()
    check({"thinking", "signature", "input_json", "text"} <= kinds, f"events: {kinds}")
    check([block.to_dict() | {"id": 0} for block in same.content] ==
          [block.to_dict() | {"id": 0} for block in first.content], "the same blocks in a stream")
    messages += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [
                     {"type": "tool_result", "tool_use_id": first.content[2].id,
                      "content": [{"type": "text", "text": "2.6"}]}]}]
    second = client.messages.create(**{**turn, "extra_body": forced(args.answers["text"])})
    check(second.content[0].text.startswith("All done"), "the answer behind the tool")
    check(second.usage.cache_read_input_tokens > 0, "goes on from the cache")
    thinking = client.messages.create(**{**asked, "max_tokens": 1100},
                                      thinking={"type": "enabled", "budget_tokens": 1024})
    check(thinking.content[0].type == "thinking", "thinking")
    need = client.messages.create(**{**turn, "messages": messages[:1], "extra_body": {}},
                                  tool_choice={"type": "any", "disable_parallel_tool_use": True})
    check(need.stop_reason == "max_tokens" or need.content[-1].type == "tool_use", "tool any")

    for error, more in ((anthropic.BadRequestError, {"extra_body": {"temperature": -1}}),
                        (anthropic.NotFoundError, {"model": "other"}),
                        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [
                            {"type": "image", "source": {"type": "url", "url": "x"}}]}]})):
        try:
            client.messages.create(**{**asked, **more})
            check(False, f"{more} is refused")
        except error as e:
            check(e.body["error"]["type"] in ("invalid_request_error", "not_found_error"), "type")
            check(e.body["request_id"], "request_id")
    check.done()


if __name__ == "__main__":
    main()
