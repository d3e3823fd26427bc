// What docs/http.md says of each field of the APIs that stand on chats is so, and no field is
// missing.
#include "api_server.h"
#include "core/text_file.h"
#include "server/request/unserved.h"

namespace replayssm::server {
namespace {

// Field to "served", "ignored" or "refused", from the table below the heading.
std::map<std::string, std::string> documented(const std::string& heading) {
  const std::string text = read_text_file(REPLAYSSM_SOURCE_DIR "/docs/http.md", size_t{1} << 20);
  const size_t begin = text.find("## " + heading + "\n");
  const std::string section = text.substr(begin, text.find("\n## ", begin) - begin);
  std::map<std::string, std::string> fields;
  for (size_t at = section.find("\n| `"); at != std::string::npos;
       at = section.find("\n| `", at + 1)) {
    const size_t names_end = section.find(" | ", at + 1);
    const std::string names = section.substr(at, names_end - at);
    const std::string what =
        section.substr(names_end + 3, section.find(" |", names_end + 3) - names_end - 3);
    for (size_t open = names.find('`'); open != std::string::npos;) {
      const size_t close = names.find('`', open + 1);
      fields[names.substr(open + 1, close - open - 1)] = what;
      open = names.find('`', close + 1);
    }
  }
  return fields;
}

class ApiDocs : public ApiServer {
 protected:
  // Each field of the table with a value of its own does what its row says; `base` alone is served.
  void check(const std::string& heading, const std::string& path, const Json& base,
             const std::map<std::string, Json>& values) {
    const auto fields = documented(heading);
    EXPECT_GT(fields.size(), 10u);
    for (const auto& [name, what] : fields) {
      EXPECT_TRUE(values.contains(name)) << name << " has no value in this test";
    }
    for (const auto& [name, value] : values) {
      ASSERT_TRUE(fields.contains(name)) << name << " is not in docs/http.md";
      const std::string& what = fields.at(name);
      Json body = base;
      body[name] = value;
      if (name == "stream_options") body["stream"] = true;
      const Response got = post(path, body.dump());
      const std::string warning = got.header("x-replayssm-warning");
      SCOPED_TRACE(
          concat(name, " is ", what, ": ", got.status, " ", warning, got.body.substr(0, 300)));
      EXPECT_EQ(got.status, what == "refused" ? 400 : 200);
      EXPECT_TRUE(what == "served" || what == "ignored" || what == "refused");
      EXPECT_EQ(warning.find(name + ": ") != std::string::npos, what == "ignored");
      EXPECT_EQ(got.body.find("\"" + name + ": ") != std::string::npos, what == "refused");
    }
  }
};

#ifdef REPLAYSSM_GRAMMARS
const std::string kFormat = R"({"type": "json_schema", "name": "n", "schema": {"type": "object",
    "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}})";
#endif

TEST_F(ApiDocs, Responses) {
  start();
  say("a");
  const Response stored = post("/v1/responses", R"({"input": "x"})");
  const std::map<std::string, Json> values = {
      {"model", "demo-gdn"},
      {"input", "y"},
      {"instructions", "Be brief."},
      {"previous_response_id", stored.json().at("id")},
      {"store", false},
      {"tools", Json::parse(R"([{"type": "function", "name": "f"}])")},
      {"tool_choice", "none"},
      {"parallel_tool_calls", false},
      {"text", Json::parse("{\"format\": {\"type\": \"text\"}}")},
      {"reasoning", Json::parse(R"({"effort": "low"})")},
      {"include", Json::parse(R"(["reasoning.encrypted_content"])")},
      {"max_output_tokens", 20},
      {"temperature", 0.5},
      {"top_p", 0.5},
      {"metadata", Json::parse(R"({"a": "b"})")},
      {"stream", true},
      {"stream_options", Json::parse(R"({"include_obfuscation": false})")},
      {"truncation", "auto"},
      {"user", "u"},
      {"safety_identifier", "s"},
      {"prompt_cache_key", "k"},
      {"prompt_cache_retention", "24h"},
      {"service_tier", "auto"},
      {"max_tool_calls", 3},
      {"client_metadata", Json::object()},
      {"context_management", Json::array()},
      {"background", true},
      {"conversation", "c"},
      {"prompt", Json::parse(R"({"id": "p"})")},
      {"top_logprobs", 2}};
  check("POST /v1/responses", "/v1/responses", Json::parse(R"({"input": "x"})"), values);
}

// The table of fields that are refused is the server's own, and each is refused by name.
TEST_F(ApiDocs, UnservedFields) {
  start();
  say("a");
  const auto fields = documented("Fields of other servers");
  EXPECT_EQ(fields.size(), unserved_fields().size());
  for (const UnservedField& field : unserved_fields()) {
    const std::string name(field.name);
    EXPECT_TRUE(fields.contains(name)) << name << " is not in docs/http.md";
    const auto send = [&](bool chat, const Json& value) {
      Json body = chat ? Json::parse(R"({"messages": [{"role": "user", "content": "x"}]})")
                       : Json{{"prompt", "x"}};
      body[name] = value;
      return post(chat ? "/v1/chat/completions" : "/v1/completions", body.dump());
    };
    for (const bool chat : {true, false}) {
      if (field.chat_alone && !chat) continue;
      const Response got = send(chat, "a value");
      EXPECT_EQ(got.status, 400) << name;
      EXPECT_EQ(got.json().at("error").at("param"), name);
      if (!field.neutral.empty()) {
        const Response neutral = send(chat, parse_json(field.neutral));
        EXPECT_EQ(neutral.status, 200) << name;
        EXPECT_EQ(neutral.header("x-replayssm-warning"), "") << name;
      }
    }
  }
}

TEST_F(ApiDocs, Messages) {
  start();
  say("a");
  const std::map<std::string, Json> values = {
      {"model", "demo-gdn"},
      {"messages", Json::parse(R"([{"role": "user", "content": "y"}])")},
      {"system", "Be brief."},
      {"max_tokens", 20},
      {"tools", Json::parse(R"([{"name": "f", "input_schema": {"type": "object"}}])")},
      {"tool_choice", Json::parse(R"({"type": "auto"})")},
      {"thinking", Json::parse(R"({"type": "adaptive"})")},
#ifdef REPLAYSSM_GRAMMARS
      {"output_config", Json::parse("{\"format\": " + kFormat + "}")},
      {"output_format", Json::parse(kFormat)},
#else
      {"output_config", Json::parse(R"({"effort": "low"})")},
      {"output_format", nullptr},
#endif
      {"stop_sequences", Json::parse(R"(["z"])")},
      {"temperature", 0.5},
      {"top_p", 0.5},
      {"top_k", 5},
      {"stream", true},
      {"metadata", Json::parse(R"({"user_id": "u"})")},
      {"service_tier", "auto"},
      {"inference_geo", "eu"},
      {"cache_control", Json::parse(R"({"type": "ephemeral"})")},
      {"context_management", Json::parse(R"({"edits": []})")},
      {"mcp_servers", Json::parse(R"([{"name": "m"}])")},
      {"container", "c"}};
  check("POST /v1/messages", "/v1/messages",
        Json::parse(R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 10})"),
        values);
}

}  // namespace
}  // namespace replayssm::server
