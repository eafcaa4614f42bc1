"""The recipes of examples/recipes, which need packages that `make test` does not install. `make test-stores` installs them and runs this
file. Those of docs/recipes.md run in test_readme.py."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from paths import ROOT

import pumice

WHY = "not run here: `make test-stores` installs DuckDB, LangChain and LlamaIndex"
RECIPES = ROOT / "examples" / "recipes"
TEXTS = ["A stone that floats.", "A stone that sinks.", "Interest rates rose again."]

sys.path.insert(0, str(RECIPES))


def test_recipes_are_short() -> None:
    files = sorted(RECIPES.glob("*.py"))
    assert len(files) == 3
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
