#!/usr/bin/env python3
"""langchain-openai and litellm against a server of run_all.py's model."""
import importlib.metadata
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm  # noqa: E402
from checks import Checks, arguments  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402
from scripted import forced  # noqa: E402


@tool
def package_version(name: str) -> str:
    """Version of a package"""
    return f"{name} 2.6"


class Package(BaseModel):
    kind: str = Field(max_length=8)
    size: int = Field(ge=0, le=999)


def langchain(args, check):
    model = args.answers["model"]
    for responses in (False, True):
        way = "responses" if responses else "chat"
        base = {"base_url": args.url + "/v1", "api_key": "none", "model": model, "max_retries": 0,
                "use_responses_api": responses}
        plain = ChatOpenAI(**base, max_tokens=24, extra_body={"seed": 3})
        whole = plain.invoke("What is apt?")
        text = "".join(chunk.text for chunk in plain.stream("What is apt?"))
        check(text and text == whole.text, f"langchain {way}: stream = whole")
        check(whole.usage_metadata["output_tokens"] > 0, f"langchain {way}: usage")
        caller = ChatOpenAI(**base, extra_body=forced(args.answers["call"]))
        messages = [HumanMessage("Which apt?")]
        answer = caller.bind_tools([package_version]).invoke(messages)
        check([c["args"] for c in answer.tool_calls] == [{"name": "apt"}], f"langchain {way}: call")
        result = package_version.invoke(answer.tool_calls[0])
        check(isinstance(result, ToolMessage), "a tool's message")
        talker = ChatOpenAI(**base, extra_body=forced(args.answers["text"]))
        last = talker.bind_tools([package_version]).invoke([*messages, answer, result])
        check(last.text.startswith("All done"), f"langchain {way}: the answer behind the tool")
        parsed = ChatOpenAI(**base, max_tokens=400).with_structured_output(
            Package, method="json_schema").invoke("apt?")
        check(isinstance(parsed, Package), f"langchain {way}: structured output")


def lite(args, check):
    litellm.suppress_debug_info = True
    messages = [{"role": "user", "content": "What is apt?"}]
    ways = {"chat": {"model": "openai/" + args.answers["model"], "api_base": args.url + "/v1"},
            "messages": {"model": "anthropic/" + args.answers["model"], "api_base": args.url}}
    for way, base in ways.items():
        asked = {**base, "api_key": "none", "messages": messages, "max_tokens": 24,
                 "num_retries": 0, "temperature": 0}
        whole = litellm.completion(**asked).choices[0].message.content
        parts = litellm.completion(**asked, stream=True)
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        check(text and text == whole, f"litellm {way}: stream = whole")
        tools = [{"type": "function", "function": {
            "name": "package_version", "parameters": {
                "type": "object", "properties": {"name": {"type": "string", "maxLength": 9}},
                "required": ["name"], "additionalProperties": False}}}]
        answer = litellm.completion(**{**asked, "max_tokens": 300}, tools=tools,
                                    tool_choice="required")
        calls = answer.choices[0].message.tool_calls
        check(calls and calls[0].function.name == "package_version", f"litellm {way}: call")


def main():
    args = arguments()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}"
                         for name in ("langchain-openai", "litellm"))
    check = Checks(versions)
    langchain(args, check)
    lite(args, check)
    check.done()


if __name__ == "__main__":
    main()
