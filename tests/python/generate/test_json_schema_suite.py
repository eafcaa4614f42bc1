"""The JSON-Schema-Test-Suite, draft 2020-12: each schema must be enforced or refused by name, and no instance may be allowed that the suite
calls invalid. What is refused, and which valid instances are, is listed with its reason in tests/goldens/suites/json_schema.json.

The suite comes with the sdist of the package jsonschema."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest
from suites import compiled, differences, members, package, table, takes_bytes

import pumice
from pumice import Grammar


@cache
def results() -> tuple[Counter[tuple[str, str]], dict[str, str], list[str], list[str]]:
    """Returns the number of instances by (file, result); the messages of refused schemas; the valid instances that are not allowed; the
    invalid instances that are."""
    counts: Counter[tuple[str, str]] = Counter()
    refused, too_strict, too_loose = {}, [], []
    for name, data in members(package("jsonschema"), "json/tests/draft2020-12/"):
        file = name.removesuffix(".json")
        for group in json.loads(data):
            schema = f"{file} / {group['description']}"
            try:
                made = compiled(Grammar.json_schema(group["schema"]))
            except pumice.GrammarError as error:
                refused[schema] = str(error)
                counts[file, "refused"] += len(group["tests"])
                continue
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
                allowed, case = takes_bytes(made, text), f"{schema} / {test['description']}"
                if allowed and not test["valid"]:
                    too_loose.append(case)
                    counts[file, "false_positive"] += 1
                elif test["valid"] and not allowed:
                    too_strict.append(case)
                    counts[file, "false_negative"] += 1
                else:
                    counts[file, "pass"] += 1
    return counts, refused, too_strict, too_loose


def listed(part: str) -> dict[str, str]:
    """Returns a dict from each listed case to its reason."""
    return {case: reason for reason, cases in table("json_schema")[part].items() for case in cases}


def test_no_invalid_instance_is_allowed() -> None:
    counts, refused, too_strict, too_loose = results()
    assert too_loose == []
    total = Counter({result: sum(n for (_, one), n in counts.items() if one == result) for _, result in counts})
    assert total["pass"] >= 1000
    print(f"\n{sum(total.values())} instances: {dict(total)}; schemas refused by name: {len(refused)}")


def test_refused_schemas_are_listed_and_named() -> None:
    refused, known = results()[1], listed("refused")
    assert differences(known, refused) == ""
    for schema, message in refused.items():
        assert known[schema] in message, (schema, message)


def test_valid_instances_that_are_refused_are_listed() -> None:
    assert differences(listed("too strict"), results()[2]) == ""


# Results from the mildest to the worst. A false positive is the worst, because nothing tells the caller of it.
WORSE = ("false_negative", "refused", "false_positive")


@pytest.mark.parametrize("least", WORSE)
def test_no_file_is_worse_than_what_llguidance_publishes(least: str) -> None:
    """For each file of the suite, llguidance publishes how many instances have which result with its Rust library. No more of ours may be
    at least as bad as `least`."""
    counts = results()[0]
    published: dict[str, dict[str, int]] = table("json_schema")["llguidance"]
    bad = WORSE[WORSE.index(least) :]
    ours = {file: sum(counts[file, result] for result in bad) for file in published}
    theirs = {file: sum(found.get(result, 0) for result in bad) for file, found in published.items()}
    assert len(published) > 60
    assert {file: (n, theirs[file]) for file, n in ours.items() if n > theirs[file]} == {}
