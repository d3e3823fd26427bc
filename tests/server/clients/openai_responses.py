#!/usr/bin/env python3
"""The `openai` package's responses against a server of run_all.py's model."""
import json

import openai
from checks import Checks, arguments
from pydantic import BaseModel, Field
from scripted import forced

TOOL = {"type": "function", "name": "package_version", "description": "Version of a package",
        "strict": True,
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}},
                       "required": ["name"], "additionalProperties": False}}


class Package(BaseModel):
    kind: str = Field(max_length=8)
    size: int = Field(ge=0, le=999)


def main():
    args = arguments()
    check = Checks(f"openai {openai.__version__} responses")
    client = openai.OpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = {"model": model, "input": "What is apt?", "max_output_tokens": 24,
             "extra_body": {"seed": 3}}
    whole = client.responses.create(**asked, instructions="Be brief.", metadata={"a": "b"})
    check(whole.output_text and whole.status in ("completed", "incomplete"), "text")
    check(whole.metadata == {"a": "b"}, "metadata")
    check(whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens, "usage")
    with client.responses.stream(**asked, instructions="Be brief.") as stream:
        events = list(stream)
    check([e.sequence_number for e in events] == list(range(len(events))), "sequence numbers")
    check(events[-1].response.output_text == whole.output_text, "stream = whole")
    again = client.responses.create(**asked, instructions="Be brief.")
    check(again.usage.input_tokens_details.cached_tokens > 0, "cached tokens")

    # A turn with reasoning and a call, the tool's result, and the answer.
    thought = {"model": model, "input": "Which apt?", "tools": [TOOL],
               "reasoning": {"effort": "medium", "summary": "auto"},
               "include": ["reasoning.encrypted_content"],
               "extra_body": forced(args.answers["call"])}
    first = client.responses.create(**{**thought, "reasoning": {"effort": "none"}})
    types = [item.type for item in first.output]
    check(types == ["reasoning", "message", "function_call"], "items")
    call = first.output[2]
    check(json.loads(call.arguments) == {"name": "apt"}, "arguments")
    with client.responses.stream(**{**thought, "reasoning": {"effort": "none"}}) as stream:
        types = [event.type for event in stream]
        same = stream.get_final_response()
    check("response.reasoning_text.delta" in types, "reasoning deltas")
    check("response.function_call_arguments.done" in types, "arguments")
    check([item.type for item in same.output] == [item.type for item in first.output], "same items")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2.6"}
    second = client.responses.create(model=model, previous_response_id=first.id, input=[result],
                                     tools=[TOOL], extra_body=forced(args.answers["text"]))
    check(second.output_text.startswith("All done"), "the answer behind the tool")
    check(second.usage.input_tokens_details.cached_tokens > 0, "goes on from the cache")
    everything = [{"role": "user", "content": "Which apt?"}, *first.output, result]
    stateless = client.responses.create(model=model, input=everything, tools=[TOOL], store=False,
                                        extra_body=forced(args.answers["text"]))
    check(stateless.usage.input_tokens == second.usage.input_tokens, "the same prompt sent again")
    check(client.responses.retrieve(first.id).id == first.id, "retrieve")
    client.responses.delete(first.id)
    for what in (lambda: client.responses.retrieve(first.id),
                 lambda: client.responses.create(model=model, previous_response_id=first.id,
                                                 input="x")):
        try:
            what()
            check(False, "a deleted one is gone")
        except openai.NotFoundError:
            check(True, "404")

    forced_call = client.responses.create(model=model, input="apt?", tools=[TOOL],
                                          tool_choice="required", max_output_tokens=300)
    check(forced_call.status == "incomplete" or forced_call.output[-1].type == "function_call",
          "tool_choice required")
    parsed = client.responses.parse(model=model, input="apt?", text_format=Package,
                                    max_output_tokens=400, temperature=0)
    check(isinstance(parsed.output_parsed, Package), "structured output")
    try:
        client.responses.create(model=model, input="x", background=True)
        check(False, "background is refused")
    except openai.BadRequestError as error:
        check(error.param == "background", "by name")
    odd = client.responses.create(**asked, tools=[TOOL, {"type": "web_search"}])
    check(odd.output is not None, "an odd tool does not block the others")
    check.done()


if __name__ == "__main__":
    main()
