"""DSPy: programs over a model of `pumice serve`. Needs dspy; the server needs pumice[serve].

`pumice serve chat=MODEL` serves at http://127.0.0.1:8000. JSONAdapter sends the schema of the answer's fields, and the server enforces it,
so that small models answer in the right form, too."""

from __future__ import annotations

from typing import Any, Literal

import dspy


class Order(dspy.Signature):
    """Read the order in a mail."""

    mail: str = dspy.InputField()
    count: int = dspy.OutputField()
    thing: Literal["stones", "maps", "tea"] = dspy.OutputField()


def begin(url: str, **options: Any) -> dspy.LM:
    """Makes DSPy use the model "chat" of a server. options: settings of all answers, such as max_tokens."""
    lm = dspy.LM("openai/chat", api_base=f"{url}/v1", api_key="none", model_type="chat", cache=False, **options)
    dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
    return lm


def read(mail: str) -> tuple[int, str]:
    """Returns the count and the thing of an order."""
    found = dspy.Predict(Order)(mail=mail)
    return found.count, found.thing
