// The template interpreter beside the Python library, and what it refuses.
#include <gtest/gtest.h>

#include <cstdio>

#include "../model/testing.h"
#include "jinja/template.h"

namespace replayssm::jinja {
namespace {

const std::string kFolder = REPLAYSSM_SOURCE_DIR "/tests/server";

std::string render(const std::string& source, const Json& context = Json::object()) {
  return Template::parse(source, "test").render(context);
}

std::string command_output(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[65536];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return out;
}

// Every template with every context: the same text, or both refuse.
TEST(Jinja, EqualsThePythonLibrary) {
  const std::string contexts_path = kFolder + "/templates/contexts.json";
  std::string command = "/usr/bin/python3 " + kFolder + "/jinja_oracle.py " + contexts_path;
  std::vector<std::string> paths;
  for (const char* name : {"features", "nemotron_style", "qwen_style", "whitespace"}) {
    paths.push_back(concat(kFolder, "/templates/", name, ".jinja"));
  }
  paths.push_back(REPLAYSSM_SOURCE_DIR "/models/demo-gdn/chat_template.jinja");
  for (const auto& path : paths) command += " " + path;
  const Json expected = Json::parse(command_output(command));
  const Json contexts = Json::parse(read_text(contexts_path));
  int n_compared = 0;
  for (const auto& path : paths) {
    const Template parsed = Template::parse(read_text(path), path);
    for (const auto& context : contexts.items()) {
      SCOPED_TRACE(path + " " + context.key());
      const Json& wanted = expected.at(path).at(context.key());
      ++n_compared;
      try {
        const std::string text = parsed.render(context.value());
        ASSERT_TRUE(wanted.is_string()) << "the library refuses; here it is: " << text;
        EXPECT_EQ(text, wanted.get<std::string>());
      } catch (const Error& e) {
        EXPECT_TRUE(wanted.is_null()) << e.what();
      }
    }
  }
  EXPECT_EQ(n_compared, 50);
}

TEST(Jinja, ErrorsNameTheLine) {
  const struct {
    const char *source, *part;
  } kCases[] = {
      {"a\n{% if x %}", "test:2: expected {% endif %}"},
      {"a\nb {{ x | nothing }}", "test:2: no filter is called \"nothing\""},
      {"{{ 'a' + 1 }}", "test:1: cannot compute str + int"},
      {"\n\n{{ a.b.c }}", "test:3: \"b\" is undefined"},
      {"{{ f(1) }}", "\"f\" is undefined"},
      {"{% include 'x' %}", "test:1: the tag \"include\" is not taken here"},
      {"{{ 'open", "test:1: a string has no end"},
      {"{{ 1 +", "test:1: a tag has no end"},
      {"{{ 1 + }}", "expected an expression"},
      {"{# open", "a comment has no end"},
      {"{% for a, b in [[1]] %}{% endfor %}", "cannot spread 1 values over 2 names"},
      {"{{ 9223372036854775807 + 1 }}", "an integer leaves 64 bits"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{% break %}", "break outside a loop"},
  };
  for (const auto& c : kCases) {
    const Json context = {{"a", Json::object()}};
    expect_refusal({c.part}, [&] { render(c.source, context); });
  }
}

TEST(Jinja, RaiseException) {
  try {
    render("{{ raise_exception('no ' + 'way') }}");
    FAIL();
  } catch (const Raised& e) {
    EXPECT_STREQ(e.what(), "no way");
  }
}

// What a hostile template costs is bounded.
TEST(Jinja, Bounds) {
  const std::string deep = std::string(100000, '(') + "1" + std::string(100000, ')');
  const char* const kHostile[] = {
      "{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}",
      "{{ range(100000000) }}",
      "{{ 'a' * 1000000000000 }}",
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ 2 ** 100000000000 }}",
      "{{ (['a' * 1000000] * 3) }}",
  };
  for (const char* source : kHostile) {
    SCOPED_TRACE(source);
    expect_refusal({"test:1: "}, [&] { render(source); });
  }
  expect_refusal({"nests too deep"}, [&] { render("{{ " + deep + " }}"); });
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  expect_refusal({"nests too deep"}, [&] { render(sum + " }}"); });
  std::string nots = "{{ ";
  for (int i = 0; i < 100000; ++i) nots += "not ";
  expect_refusal({"nests too deep"}, [&] { render(nots + "1 }}"); });
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  expect_refusal({"nests too deep"}, [&] { render(blocks); });
}

}  // namespace
}  // namespace replayssm::jinja
