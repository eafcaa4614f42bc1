// Regular expressions of config.json: what Python's re.match() says.
#include "files/schemes/patterns.h"

#include <gtest/gtest.h>

#include <string>

namespace pumice::files::schemes {
namespace {

bool begins(const std::string& expression, const std::string& text) {
  const auto pattern = Pattern::read(expression);
  EXPECT_TRUE(pattern) << expression;
  return pattern && pattern->begins(text);
}

TEST(Patterns, Match) {
  const std::string module = "model.layers.12.self_attn.q_proj";
  for (const char* expression :
       {".*self_attn.*", "model", "", "model\\.layers\\.\\d+\\.", ".*\\.(q|k|v)_proj$", ".*layers\\.1[0-9]\\..*", "^model",
        "(?:model|x)?\\.layers", ".*[^x]_proj", "m{1}odel", "(.*\\.){4}q", "[\\w.]+$", "mo{0,2}d", ".+?q_", "(a*)*model", "((m|o)+d)+el"})
    EXPECT_TRUE(begins(expression, module)) << expression;
  for (const char* expression : {"layers", "model\\.layers\\.\\d\\.", ".*\\.(k|v)_proj", ".*q_proj.", "Model", "model$", ".+^model",
                                 "(.*\\.){5}", "mo{2}", "[^m]", "model\\d", "\\s"})
    EXPECT_FALSE(begins(expression, module)) << expression;
  EXPECT_TRUE(begins("]", "]"));
  EXPECT_TRUE(begins("[a-]", "-"));
}

TEST(Patterns, WhatIsNotRead) {
  for (const char* expression : {"(?!x)", "(?<=x)", "(?P<a>x)", "a**", "*",    "a{",    "a{,3}", "a{2", "a{1001}", "(",
                                 ")",     "a)",     "[",        "[a",  "[]a]", "[z-a]", "\\",    "\\b", "\\1",     "a|*"})
    EXPECT_FALSE(Pattern::read(expression)) << expression;
  EXPECT_FALSE(Pattern::read(std::string(100000, '(')));
}

// Backtracking would take 2^50 steps.
TEST(Patterns, TakeBoundedTime) { EXPECT_FALSE(begins("(x+x+)+y", std::string(50, 'x'))); }

TEST(Patterns, ListOfModules) {
  using By = ModuleList::By;
  const ModuleList list({"a.b", "re:.*\\.c", "Linear"});
  EXPECT_EQ(list.names("a.b"), By::name);
  EXPECT_EQ(list.names("a.c"), By::expression);
  EXPECT_EQ(list.names("a.bc"), By::type);
  EXPECT_EQ(list.names("model.embed_tokens"), By::none);
  EXPECT_EQ(ModuleList({"Embedding"}).names("model.embed_tokens"), By::type);
  EXPECT_EQ(ModuleList({}).names("a"), By::none);
  EXPECT_EQ(ModuleList({"re:(?!x)"}).names("a"), By::expression);  // is not read, and may name any module
}

}  // namespace
}  // namespace pumice::files::schemes
