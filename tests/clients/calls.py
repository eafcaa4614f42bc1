"""Calls of real clients, unchanged, to a running `pumice serve`. run.py starts this file in each client's own environment.

python calls.py URL CLIENT ...   prints a JSON object a call: client, call, result ("ok", or what went wrong)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHAT, EMBED = "chat", "embed"
URL = ""
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER, "strict": True}
HELLO = [{"role": "user", "content": "Say hello."}]
ASK = [{"role": "user", "content": "What is the weather in Rome?"}]
LIMIT = 24  # tokens of an answer; SmolLM2 does not come to an end by itself

CALLS: dict[str, list[tuple[str, Callable[[], Any]]]] = {}


def call(client: str, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a call of a client."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        CALLS.setdefault(client, []).append((name, function))
        return function

    return register


def need(condition: Any, said: Any = "") -> None:
    if not condition:
        raise AssertionError(said)


def documented(package: str) -> types.SimpleNamespace:
    """Runs the block of docs/serving.md that begins with the name of a package, for this server's address. Returns the names that it
    defines."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    [block] = re.findall(rf"^```python\n# {package} \S+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:8000", URL), names)
    return types.SimpleNamespace(**names)


# ---------------------------------------------------------------- openai
def openai_client(**more: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", timeout=300, **more)


@call("openai", "models.list")
def _() -> None:
    need({model.id for model in documented("openai").client.models.list()} == {CHAT, EMBED})


@call("openai", "files and batches")
def _() -> None:
    client = openai_client()
    bodies = {"a": {"messages": HELLO, "max_tokens": LIMIT, "temperature": 0}, "b": {"messages": "none"}}
    path = "/v1/chat/completions"
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": path, "body": {"model": CHAT, **body}}) for name, body in bodies.items()
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    need(file.bytes == len("\n".join(lines)) and client.files.retrieve(file.id) == file, file)
    batch = client.batches.create(input_file_id=file.id, endpoint=path, completion_window="24h", metadata={"a": "b"})
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    need(batch.status == "completed" and batch.metadata == {"a": "b"}, batch)
    need((batch.request_counts.completed, batch.request_counts.failed, batch.request_counts.total) == (1, 1, 2), batch)
    answer = json.loads(client.files.content(batch.output_file_id).text)
    whole = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=LIMIT, temperature=0)
    need(answer["response"]["body"]["choices"][0]["message"]["content"] == whole.choices[0].message.content, answer)
    need(json.loads(client.files.content(batch.error_file_id).text)["response"]["status_code"] == 400)
    need(batch.id in [each.id for each in client.batches.list(limit=1)])
    need(len([*client.files.list(limit=1, order="asc")]) == 3)  # pages of one
    need(client.files.delete(file.id).deleted)
    try:
        client.batches.cancel(batch.id)
    except Exception as error:
        need("cannot be cancelled" in str(error), error)
    else:
        need(False, "a batch that is over was cancelled")


@call("openai", "chat.completions.create")
def _() -> None:
    found = openai_client().chat.completions.create(model=CHAT, messages=HELLO, max_tokens=LIMIT, temperature=0)
    need(found.choices[0].message.content and found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens, found)


@call("openai", "chat.completions.create(stream=True)")
def _() -> None:
    client = openai_client()
    whole = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=LIMIT, temperature=0).choices[0].message.content
    text, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=CHAT, messages=HELLO, max_tokens=LIMIT, temperature=0, stream=True, stream_options=options
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    need(text == whole and usage.completion_tokens > 0, (text, whole))


@call("openai", "chat.completions.create(tools=)")
def _() -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    client = openai_client()
    found = client.chat.completions.create(model=CHAT, messages=ASK, tools=tools, tool_choice="required", temperature=0)
    [called] = found.choices[0].message.tool_calls[:1]
    need(json.loads(called.function.arguments)["city"] in ("Rome", "Oslo") and found.choices[0].finish_reason == "tool_calls", found)
    then = [*ASK, found.choices[0].message, {"role": "tool", "tool_call_id": called.id, "content": "Dry."}]
    answer = client.chat.completions.create(model=CHAT, messages=then, tools=tools, tool_choice="none", max_tokens=LIMIT)
    need(answer.choices[0].message.content is not None, answer)


def _typed() -> Any:
    import pydantic

    class Pick(pydantic.BaseModel):
        city: str = pydantic.Field(pattern="^(Rome|Oslo)$")

    return Pick


@call("openai", "chat.completions.parse")
def _() -> None:
    found = openai_client().chat.completions.parse(model=CHAT, messages=ASK, response_format=_typed(), max_tokens=60)
    need(found.choices[0].message.parsed.city in ("Rome", "Oslo"), found)


@call("openai", "chat.completions.stream")
def _() -> None:
    # The helper raises an error for an answer that is cut, so this one comes to an end.
    only = {"structured_outputs": {"choice": ["Hello, stone.", "Hello, tree."]}}
    with openai_client().chat.completions.stream(model=CHAT, messages=HELLO, extra_body=only) as stream:
        kinds = {event.type for event in stream}
        need({"content.delta", "content.done", "chunk"} <= kinds, kinds)
        need(stream.get_final_completion().choices[0].message.content)


@call("openai", "completions.create")
def _() -> None:
    need(openai_client().completions.create(model=CHAT, prompt="One, two,", max_tokens=4).choices[0].text)


@call("openai", "embeddings.create")
def _() -> None:
    found = openai_client().embeddings.create(model=EMBED, input=["a", "b"])
    need([len(each.embedding) for each in found.data] == [384, 384] and found.usage.prompt_tokens > 0)


@call("openai", "responses.create")
def _() -> None:
    found = openai_client().responses.create(model=CHAT, input="Say hello.", max_output_tokens=LIMIT, temperature=0)
    need(found.output_text and found.status in ("completed", "incomplete") and found.usage.output_tokens > 0, found)


@call("openai", "responses.stream")
def _() -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": WEATHER}}  # so that the answer comes to an end, as above
    with openai_client().responses.stream(model=CHAT, input="Say hello.", text=form) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        need(text and text == stream.get_final_response().output_text, text)


@call("openai", "responses.create(tools=)")
def _() -> None:
    client, tools = openai_client(), [{"type": "function", **FUNCTION}]
    found = client.responses.create(model=CHAT, input=ASK, tools=tools, tool_choice="required", temperature=0)
    [called] = [item for item in found.output if item.type == "function_call"][:1]
    need(json.loads(called.arguments)["city"] in ("Rome", "Oslo"), found)
    then = [*ASK, *found.output, {"type": "function_call_output", "call_id": called.call_id, "output": "Dry."}]
    need(client.responses.create(model=CHAT, input=then, tools=tools, tool_choice="none", max_output_tokens=LIMIT).output_text)


@call("openai", "responses.create(custom tool)")
def _() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "(add|drop) [a-z]{1,6}"}
    tools = [{"type": "custom", "name": "edit", "description": "Edits a list.", "format": grammar}]
    with openai_client().responses.stream(model=CHAT, input="Add tea.", tools=tools, tool_choice="required") as stream:
        arrived = "".join(event.delta for event in stream if event.type == "response.custom_tool_call_input.delta")
        [called] = [item for item in stream.get_final_response().output if item.type == "custom_tool_call"][:1]
    need(called.input.split()[0] in ("add", "drop") and arrived.startswith(called.input), called)


@call("openai", "responses.parse")
def _() -> None:
    need(openai_client().responses.parse(model=CHAT, input=ASK, text_format=_typed(), max_output_tokens=60).output_parsed.city)


@call("openai", "responses.input_tokens.count")
def _() -> None:
    need(openai_client().responses.input_tokens.count(model=CHAT, input="Say hello.").input_tokens > 3)


@call("openai", "responses.create(previous_response_id=), retrieve, input_items.list, delete")
def _() -> None:
    import openai

    client, brief = openai_client(), {"max_output_tokens": 8, "temperature": 0}
    first = client.responses.create(model=CHAT, input="My name is Ada.", **brief)
    second = client.responses.create(model=CHAT, input="What is my name?", previous_response_id=first.id, **brief)
    need(second.usage.input_tokens > first.usage.input_tokens and second.previous_response_id == first.id, second)
    *_, last = client.responses.create(model=CHAT, input="Once more?", previous_response_id=second.id, stream=True, **brief)
    third = last.response
    need(client.responses.retrieve(third.id).output_text == third.output_text, third)
    items = list(client.responses.input_items.list(third.id, limit=2, order="asc"))  # five items, so three pages
    need([item.role for item in items] == ["user", "assistant"] * 2 + ["user"] and items[0].content[0].text == "My name is Ada.", items)
    client.responses.delete(third.id)
    for call in (lambda: client.responses.retrieve(third.id), lambda: client.responses.delete(third.id)):
        try:
            call()
        except openai.NotFoundError as error:
            need(third.id in error.body["message"], error)
        else:
            raise AssertionError("the response is still there")
    try:
        client.responses.create(model=CHAT, input="And now?", previous_response_id=third.id)
    except openai.NotFoundError as error:
        need(error.code == "previous_response_not_found", error)


@call("openai", "errors")
def _() -> None:
    import openai

    client = openai_client()
    for kind, options in (
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"model": CHAT, "temperature": -3}),
        (openai.BadRequestError, {"model": CHAT, "extra_body": {"temprature": 1}}),
    ):
        try:
            client.chat.completions.create(messages=HELLO, **options)
        except kind as error:
            need(error.body["message"] and error.param in ("model", "temperature", "temprature") and error.request_id, error)
        else:
            raise AssertionError(f"no {kind.__name__}")


@call("openai", "AsyncOpenAI, 8 at once")
def _() -> None:
    import openai

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", timeout=300) as client:
            asked = [client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=8, temperature=0) for _ in range(8)]
            return await asyncio.gather(*asked)

    need(len({found.choices[0].message.content for found in asyncio.run(main())}) == 1)


# ---------------------------------------------------------------- anthropic
def anthropic_client() -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=URL, api_key="none", timeout=300)


TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": WEATHER, "strict": True}


@call("anthropic", "models.list")
def _() -> None:
    need({model.id for model in documented("anthropic").client.models.list()} == {CHAT, EMBED})


@call("anthropic", "messages.create")
def _() -> None:
    found = anthropic_client().messages.create(model=CHAT, messages=HELLO, max_tokens=LIMIT)
    need(found.content[0].text and found.usage.output_tokens > 0 and found.stop_reason in ("end_turn", "max_tokens"), found)


@call("anthropic", "messages.stream")
def _() -> None:
    with anthropic_client().messages.stream(model=CHAT, messages=HELLO, max_tokens=LIMIT) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    need(text and text == final.content[0].text and final.usage.output_tokens > 0, final)


@call("anthropic", "messages.create(tools=)")
def _() -> None:
    client = anthropic_client()
    found = client.messages.create(model=CHAT, messages=ASK, max_tokens=200, tools=[TOOL], tool_choice={"type": "any"})
    [used] = [block for block in found.content if block.type == "tool_use"][:1]
    need(used.input["city"] in ("Rome", "Oslo") and found.stop_reason == "tool_use", found)
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "Dry."} for block in found.content if block.type == "tool_use"]
    then = [*ASK, {"role": "assistant", "content": found.content}, {"role": "user", "content": results}]
    need(client.messages.create(model=CHAT, messages=then, max_tokens=LIMIT, tools=[TOOL], tool_choice={"type": "none"}).content)


@call("anthropic", "messages.stream(tools=)")
def _() -> None:
    with anthropic_client().messages.stream(
        model=CHAT, messages=ASK, max_tokens=200, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}
    ) as stream:
        kinds = {event.type for event in stream}
        used = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    need("input_json" in kinds and used[0].input["city"] in ("Rome", "Oslo"), (kinds, used))


@call("anthropic", "messages.create(stop_sequences=)")
def _() -> None:
    client = anthropic_client()
    text = client.messages.create(model=CHAT, messages=HELLO, max_tokens=LIMIT, extra_body={"temperature": 0}).content[0].text
    stop = text.split()[2]
    found = client.messages.create(model=CHAT, messages=HELLO, max_tokens=LIMIT, extra_body={"temperature": 0}, stop_sequences=[stop])
    need((found.stop_reason, found.stop_sequence) == ("stop_sequence", stop), found)


@call("anthropic", "messages.parse")
def _() -> None:
    found = anthropic_client().messages.parse(model=CHAT, messages=ASK, max_tokens=60, output_format=_typed())
    need(found.parsed_output.city, found)


@call("anthropic", "messages.count_tokens")
def _() -> None:
    client = anthropic_client()
    counted = client.messages.count_tokens(model=CHAT, messages=HELLO).input_tokens
    used = client.messages.create(model=CHAT, messages=HELLO, max_tokens=1).usage
    need(counted == used.input_tokens + used.cache_read_input_tokens, (counted, used))


@call("anthropic", "beta.messages.create")
def _() -> None:
    need(anthropic_client().beta.messages.create(model=CHAT, messages=HELLO, max_tokens=4, betas=["context-1m-2025-08-07"]).content)


@call("anthropic", "errors")
def _() -> None:
    import anthropic

    for kind, options in (
        (anthropic.NotFoundError, {"model": "other"}),
        (anthropic.BadRequestError, {"model": CHAT, "extra_body": {"temperature": -3}}),
    ):
        try:
            anthropic_client().messages.create(messages=HELLO, max_tokens=4, **options)
        except kind as error:
            need(error.body["type"] == "error" and error.request_id, error)
        else:
            raise AssertionError(f"no {kind.__name__}")


# ---------------------------------------------------------------- others
@call("llm", "Model.prompt, whole and streamed")
def _() -> None:
    folder = Path(tempfile.mkdtemp())
    os.environ["LLM_USER_PATH"] = str(folder)
    (folder / "extra-openai-models.yaml").write_text(f'- model_id: pumice\n  model_name: {CHAT}\n  api_base: "{URL}/v1"\n')
    import llm

    model = llm.get_model("pumice")
    for stream in (False, True):
        need("".join(model.prompt("Say hello.", key="none", stream=stream, max_tokens=LIMIT)))


@call("langchain-openai", "ChatOpenAI.invoke, stream, bind_tools")
def _() -> None:
    chat = documented("langchain-openai").chat
    brief = chat.bind(max_tokens=LIMIT, temperature=0)
    whole = brief.invoke("Say hello.").content
    need(whole and whole == "".join(chunk.content for chunk in brief.stream("Say hello.")), whole)
    called = chat.bind_tools([{"type": "function", "function": FUNCTION}], tool_choice="required").bind(max_tokens=100).invoke("Weather?")
    need(called.tool_calls[0]["args"]["city"] in ("Rome", "Oslo"), called)
    typed = chat.with_structured_output(_typed(), method="json_schema").invoke("The weather in Rome?")
    need(typed.city in ("Rome", "Oslo"), typed)


@call("langchain-openai", "ChatOpenAI(use_responses_api=True)")
def _() -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=CHAT, max_tokens=LIMIT, use_responses_api=True)
    need(chat.invoke("Say hello.").text)


@call("langchain-openai", "OpenAIEmbeddings")
def _() -> None:
    made = documented("langchain-openai").embed
    need(len(made.embed_query("a")) == 384 and len(made.embed_documents(["a", "b"])) == 2)


@call("llama-index-llms-openai-like", "complete, chat, stream_chat, chat_with_tools")
def _() -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"Dry in {city}."

    chat, hello = documented("llama-index-llms-openai-like").chat, [ChatMessage(role="user", content="Say hello.")]
    brief = {"max_tokens": LIMIT, "temperature": 0}
    need(chat.complete("Say hello.", **brief).text)
    whole = chat.chat(hello, **brief).message.content
    need(whole and whole == "".join(part.delta or "" for part in chat.stream_chat(hello, **brief)), whole)
    tool = FunctionTool.from_defaults(get_weather)
    chat.strict = True  # so that the arguments are those of the function, and come to an end
    asked = chat.chat_with_tools([tool], user_msg="What is the weather in Rome?", tool_required=True, max_tokens=100, temperature=0)
    [called] = chat.get_tool_calls_from_response(asked)[:1]
    need(called.tool_name == "get_weather" and called.tool_kwargs["city"], called)


@call("llama-index-llms-openai-like", "OpenAILikeEmbedding")
def _() -> None:
    made = documented("llama-index-llms-openai-like").embed
    need(len(made.get_query_embedding("a")) == 384 and len(made.get_text_embedding_batch(["a", "b"])) == 2)


@call("haystack-ai", "OpenAIChatGenerator, whole, streamed and with tools")
def _() -> None:
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool

    chat, hello = documented("haystack-ai").chat, [ChatMessage.from_user("Say hello.")]
    brief, parts = {"max_tokens": LIMIT, "temperature": 0}, []
    whole = chat.run(messages=hello, generation_kwargs=brief)["replies"][0].text
    chat.run(messages=hello, generation_kwargs=brief, streaming_callback=lambda part: parts.append(part.content or ""))
    need(whole and whole == "".join(parts), (whole, parts))
    tool = Tool(name="get_weather", description="The weather of a city.", parameters=WEATHER, function=lambda city: f"Dry in {city}.")
    required = {"tool_choice": "required", "max_tokens": 100, "temperature": 0}
    asked = chat.run(messages=[ChatMessage.from_user("Weather in Rome?")], tools=[tool], generation_kwargs=required)["replies"][0]
    need(asked.tool_call.arguments["city"] in ("Rome", "Oslo"), asked)


@call("haystack-ai", "OpenAITextEmbedder, OpenAIDocumentEmbedder")
def _() -> None:
    from haystack import Document

    made = documented("haystack-ai")
    need(len(made.embed.run(text="a")["embedding"]) == 384)
    found = made.embed_documents.run(documents=[Document(content="a"), Document(content="b")])["documents"]
    need([len(each.embedding) for each in found] == [384, 384])


@call("cohere", "ClientV2.rerank")
def _() -> None:
    import cohere

    documents = ["Granite sinks.", "Pumice floats."]
    found = cohere.ClientV2(api_key="none", base_url=URL).rerank(model=EMBED, query="What floats?", documents=documents, top_n=1)
    need([each.index for each in found.results] == [1], found)


@call("litellm", "completion, whole, streamed and with tools")
def _() -> None:
    import litellm

    options = {"model": f"openai/{CHAT}", "api_base": f"{URL}/v1", "api_key": "none"}
    whole = litellm.completion(messages=HELLO, max_tokens=LIMIT, temperature=0, **options).choices[0].message.content
    chunks = litellm.completion(messages=HELLO, max_tokens=LIMIT, temperature=0, stream=True, **options)
    need(whole and whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole)
    found = litellm.completion(messages=ASK, tools=[{"type": "function", "function": FUNCTION}], tool_choice="required", **options)
    need(json.loads(found.choices[0].message.tool_calls[0].function.arguments)["city"], found)


@call("litellm", "anthropic/ models")
def _() -> None:
    import litellm

    found = litellm.completion(model=f"anthropic/{CHAT}", messages=HELLO, max_tokens=LIMIT, api_base=URL, api_key="none")
    need(found.choices[0].message.content, found)


@call("litellm", "responses, embedding")
def _() -> None:
    import litellm

    options = {"api_base": f"{URL}/v1", "api_key": "none"}
    need(litellm.responses(model=f"openai/{CHAT}", input="Say hello.", max_output_tokens=LIMIT, **options).output)
    need(len(litellm.embedding(model=f"openai/{EMBED}", input=["a"], **options).data[0]["embedding"]) == 384)


@call("instructor", "create(response_model=), JSON_SCHEMA")
def _() -> None:
    import instructor

    # In its other modes instructor asks for any JSON, and SmolLM2 does not write what the schema says by itself.
    client = instructor.from_openai(openai_client(), mode=instructor.Mode.JSON_SCHEMA)
    found = client.chat.completions.create(model=CHAT, messages=ASK, response_model=_typed(), max_tokens=60, max_retries=0)
    need(found.city in ("Rome", "Oslo"), found)


@call("openai-agents", "Runner.run with a tool, over Responses")
def _() -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    seen: list[str] = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        seen.append(city)
        return "Dry."

    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", timeout=300)
    model = agents.OpenAIResponsesModel(model=CHAT, openai_client=client)
    settings = agents.ModelSettings(tool_choice="required", max_tokens=200, temperature=0)
    agent = agents.Agent(name="a", instructions="Use the tool.", model=model, tools=[get_weather], model_settings=settings)
    found = asyncio.run(agents.Runner.run(agent, "What is the weather in Rome?", max_turns=4))
    need(seen and found.final_output is not None, found)


@call("openai-agents", "Runner.run(auto_previous_response_id=)")
def _() -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "Dry."

    sent: list[Any] = []

    class Model(agents.OpenAIResponsesModel):
        async def get_response(self, system_instructions: Any, input: Any, *given: Any, **more: Any) -> Any:
            sent.append((input, more.get("previous_response_id")))
            return await super().get_response(system_instructions, input, *given, **more)

    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", timeout=300)
    settings = agents.ModelSettings(tool_choice="required", max_tokens=200, temperature=0)
    model = Model(model=CHAT, openai_client=client)
    agent = agents.Agent(name="a", instructions="Use the tool.", model=model, tools=[get_weather], model_settings=settings)

    async def main() -> None:
        first = await agents.Runner.run(agent, "What is the weather in Rome?", max_turns=4, auto_previous_response_id=True)
        # The second turn has the output of the tool alone, and the server knows the call.
        need(sent[1][1] and [item["type"] for item in sent[1][0]] == ["function_call_output"], sent)
        second = await agents.Runner.run(agent, "And in Oslo?", max_turns=4, previous_response_id=first.last_response_id)
        need(second.final_output is not None, second)

    asyncio.run(main())


def main() -> None:
    global URL
    URL, *clients = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr  # what the clients print is no result
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise litellm fetches a list of prices
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    for client in clients:
        for name, function in CALLS[client]:
            try:
                function()
                result = "ok"
            except Exception as error:
                traceback.print_exc()
                result = f"{type(error).__name__}: {str(error)[:300]}"
            print(json.dumps({"client": client, "call": name, "result": result}), file=out, flush=True)


if __name__ == "__main__":
    main()
