"""The recipes of examples/recipes, which need packages that `make test` does not install. `make test-recipes` installs them and runs this
file. Those of docs/recipes.md run in test_readme.py."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from paths import ROOT
from servers import serving

import pumice

WHY = "not run here: `make test-recipes` installs the packages that the recipes need"
RECIPES = ROOT / "examples" / "recipes"
TEXTS = ["A stone that floats.", "A stone that sinks.", "Interest rates rose again."]

sys.path.insert(0, str(RECIPES))


def test_recipes_are_short() -> None:
    files = sorted(RECIPES.glob("*.py"))
    assert len(files) == 11
    assert {file.name: lines for file in files if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 40} == {}


def test_duckdb(minilm: pumice.Model) -> None:
    duckdb = pytest.importorskip("duckdb", reason=WHY)
    import rows_to_duckdb

    base = duckdb.connect()
    assert rows_to_duckdb.fill(base, minilm, iter(TEXTS * 7), rows=8) == 21  # more than one batch, the last one short
    assert rows_to_duckdb.fill(base, minilm, iter(TEXTS * 7), rows=8) == 21  # nothing is stored twice
    base.execute("DELETE FROM docs WHERE id >= 16")  # as a run that was killed in its third batch leaves the table
    assert rows_to_duckdb.fill(base, minilm, iter(TEXTS * 7), rows=8) == 21
    assert rows_to_duckdb.nearest(base, minilm, "money and banks", 2) == [(2, TEXTS[2]), (5, TEXTS[2])]
    stored = np.array([row[0] for row in base.execute("SELECT vector FROM docs ORDER BY id").fetchall()], np.float32)
    np.testing.assert_array_equal(stored, minilm.encode(TEXTS * 7))


def test_langchain(minilm: pumice.Model, smollm2: pumice.Model) -> None:
    pytest.importorskip("langchain_core", reason=WHY)
    from in_langchain import PumiceChat, PumiceEmbeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore(PumiceEmbeddings(minilm))
    store.add_texts(TEXTS)
    assert store.similarity_search("a rock on the water", k=1)[0].page_content == TEXTS[0]
    chat, options = PumiceChat(model=smollm2), {"max_tokens": 6, "temperature": 0}
    talk = [("system", "Be brief."), ("human", "Name a colour.")]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    wanted = smollm2.chat(messages, **options)
    assert chat.invoke(talk, **options).content == wanted.content
    assert [answer.content for answer in chat.batch([talk] * 3, **options)] == [wanted.content] * 3
    assert asyncio.run(chat.ainvoke(talk, **options)).content == wanted.content


def test_llamaindex(minilm: pumice.Model) -> None:
    pytest.importorskip("llama_index.core", reason=WHY)
    from in_llamaindex import PumiceEmbedding
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    embedding = PumiceEmbedding(minilm)
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedding)
    assert index.as_retriever(similarity_top_k=1).retrieve("money and banks")[0].text == TEXTS[2]
    assert asyncio.run(embedding.aget_query_embedding("money")) == minilm.encode("money").tolist()


def test_chroma(minilm: pumice.Model, tmp_path: Path) -> None:
    chromadb = pytest.importorskip("chromadb", reason=WHY)
    from in_chroma import PumiceFunction

    client = chromadb.PersistentClient(tmp_path, chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("texts", embedding_function=PumiceFunction(minilm))
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    assert collection.query(query_texts=["money and banks"], n_results=1)["documents"] == [[TEXTS[2]]]
    stored = collection.get(ids=["a"], include=["embeddings"])["embeddings"]
    np.testing.assert_array_equal(np.array(stored, np.float32), minilm.encode_document(TEXTS[:1]))
    again = client.get_collection("texts", embedding_function=PumiceFunction(minilm))
    assert again.query(query_texts=["a rock on the water"], n_results=1)["ids"] == [["a"]]


def test_txtai(minilm: pumice.Model) -> None:
    pytest.importorskip("txtai", reason=WHY)
    from in_txtai import index

    texts = index(minilm)
    texts.index(TEXTS)
    assert texts.search("money and banks", 1)[0]["text"] == TEXTS[2]
    texts.upsert([(3, "A bank pays more for savings.")])
    assert [row["text"] for row in texts.search("money and banks", 2)] == ["A bank pays more for savings.", TEXTS[2]]


@pytest.mark.parametrize("city", ["Oslo", "Bergen"])
def test_mcp(city: str, caller: pumice.Model) -> None:
    mcp = pytest.importorskip("mcp", reason=WHY)
    from with_mcp import ask

    server = mcp.StdioServerParameters(command=sys.executable, args=[str(ROOT / "tests/python/support/mcp_server.py")])
    options = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 60, "max_rounds": 2}
    found = asyncio.run(ask(caller, server, f"How many people live in {city}?", **options))
    assert [(call.name, call.arguments) for call in found.calls[:1]] == [("population", {"city": city})]
    assert found.calls[0].content == "700000" if city == "Oslo" else "nobody has counted them" in found.calls[0].content
    assert (found.calls[0].error is None) == (city == "Oslo")
    assert city == "Bergen" or "700000" in found.content


# ---------------------------------------------------------------- clients of a server
@pytest.fixture(scope="module")
def url(caller: pumice.Model, minilm: pumice.Model) -> Iterator[str]:
    with serving({"chat": caller, "embed": minilm}, sampling={"temperature": 0}) as server:
        yield f"http://127.0.0.1:{server.port}"


MAIL = "Hello, this is Bob. Please send me 12 maps."


def test_litellm(url: str, caller: pumice.Model, minilm: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise litellm fetches a list of prices
    pytest.importorskip("litellm", reason=WHY)
    from with_litellm import answer, router, vectors

    models = router(url)
    assert answer(models, "Name a colour.", max_tokens=6) == caller.chat("Name a colour.", max_tokens=6, temperature=0).content
    np.testing.assert_allclose(vectors(models, TEXTS), minilm.encode(TEXTS), atol=1e-6)


def test_mem0(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEM0_DIR", str(tmp_path / "mem0"))
    pytest.importorskip("mem0", reason=WHY)
    from with_mem0 import memory

    memories = memory(url, tmp_path)
    memories.add(TEXTS[0], user_id="ann", infer=False)
    memories.add(TEXTS[2], user_id="ann", infer=False)
    found = memories.search("money and banks", filters={"user_id": "ann"})["results"]
    assert found[0]["memory"] == TEXTS[2]
    assert memories.llm.generate_response([{"role": "user", "content": "Say hello."}])


def test_dspy(url: str) -> None:
    pytest.importorskip("dspy", reason=WHY)
    from with_dspy import begin, read

    begin(url, max_tokens=60)
    count, thing = read(MAIL)
    assert isinstance(count, int) and thing in ("stones", "maps", "tea")


def test_pydantic_ai(url: str) -> None:
    pytest.importorskip("pydantic_ai", reason=WHY)
    from with_pydantic_ai import caller, reader

    found = reader(url, max_tokens=60).run_sync(MAIL).output
    assert found.count == 12 and found.thing in ("stones", "maps", "tea")

    asked = []

    def population(city: Literal["Oslo", "Bergen"]) -> int:
        """How many people live in a city."""
        asked.append(city)
        return 700_000

    assert caller(url, population, max_tokens=100).run_sync("How many people live in Oslo?").output
    assert "Oslo" in asked


def test_openai_agents(url: str) -> None:
    pytest.importorskip("agents", reason=WHY)
    from with_openai_agents import agent, ask

    found = asyncio.run(ask(agent(url, tool_choice="required", max_tokens=200), "How many people live in Oslo?"))
    kinds = [item.type for item in found.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and found.final_output
