"""OpenAI's agents SDK over a model of `pumice serve`. Needs openai-agents; the server needs pumice[serve].

`pumice serve chat=MODEL` serves at http://127.0.0.1:8000, with the Responses interface that the SDK uses by default."""

from __future__ import annotations

from typing import Any

import openai
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # otherwise all runs are sent to OpenAI


@function_tool
def population(city: str) -> int:
    """How many people live in a city."""
    return {"Oslo": 700_000, "Bergen": 290_000}[city]


def agent(url: str, **settings: Any) -> Agent:
    """Returns an agent that may call population(). settings: fields of ModelSettings."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
    model = OpenAIResponsesModel(model="chat", openai_client=client)
    return Agent(name="guide", instructions="Use the tool.", model=model, tools=[population], model_settings=ModelSettings(**settings))


async def ask(guide: Agent, question: str) -> Any:
    """Returns the result of a run; final_output is the answer, to_input_list() the conversation."""
    return await Runner.run(guide, question, max_turns=6)
