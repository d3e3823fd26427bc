#include "server/request/structure.h"

#include <algorithm>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

using Kind = Structure::Kind;

constexpr size_t kMaxChoices = 1024;

class Reader {
 public:
  explicit Reader(Warnings& warnings) : warnings_(warnings) {}

  // A schema may come as JSON in a string.
  void schema(Fields& fields, const std::string& name) {
    const Json* value = fields.find(name);
    if (value == nullptr) return;
    const std::string path = fields.path_of(name);
    if (!value->is_string()) return keep(Kind::kSchema, path, *value);
    try {
      keep(Kind::kSchema, path, parse_json(value->get_ref<const std::string&>()));
    } catch (const Error& e) {
      refuse(path, concat("is ", e.what()));
    }
  }
  // Some clients always send an empty one.
  void text(Fields& fields, const std::string& name, Kind kind) {
    const auto value = fields.string(name);
    if (value && !value->empty()) keep(kind, fields.path_of(name), *value);
  }
  void choice(Fields& fields, const std::string& name) {
    const Json* list = fields.array(name, kMaxChoices);
    if (list == nullptr) return;
    const bool good = !list->empty() && std::all_of(list->begin(), list->end(), [](auto& item) {
      return item.is_string() && !item.template get_ref<const std::string&>().empty();
    });
    if (!good) refuse(fields.path_of(name), "must be a list of strings, none empty");
    keep(Kind::kChoice, fields.path_of(name), *list);
  }
  void json_object(const std::string& path) { keep(Kind::kJsonObject, path, Json()); }

  void response_format(Fields& fields) {
    const Json* format = fields.object("response_format");
    if (format == nullptr) return;
    Fields inner(*format, fields.path_of("response_format"));
    const std::string type = inner.string("type").value_or("");
    if (type == "json_object" || type == "json_schema") {
      if (const Json* holder = inner.object("json_schema")) {
        Fields named(*holder, inner.path_of("json_schema"));
        schema(named, "schema");
        if (taken_.kind == Kind::kNone) refuse(named.path_of("schema"), "is missing");
      } else if (inner.find("schema") != nullptr) {
        schema(inner, "schema");
      } else if (type == "json_schema") {
        refuse(inner.path_of("json_schema"), "is missing");
      } else {
        json_object(fields.path_of("response_format"));
      }
    } else if (type != "text") {
      refuse(inner.path_of("type"), "must be text, json_object or json_schema");
    }
    inner.warn_unread(warnings_);
  }

  void structured_outputs(Fields& fields) {
    const Json* object = fields.object("structured_outputs");
    if (object == nullptr) return;
    Fields inner(*object, fields.path_of("structured_outputs"));
    schema(inner, "json");
    text(inner, "regex", Kind::kRegex);
    choice(inner, "choice");
    text(inner, "grammar", Kind::kGrammar);
    if (inner.boolean("json_object").value_or(false)) json_object(inner.path_of("json_object"));
    if (inner.find("structural_tag") != nullptr) {
      refuse(inner.path_of("structural_tag"), "is not possible here; use grammar, or tools");
    }
    inner.warn_unread(warnings_);
  }

  Structure take() { return std::move(taken_); }

 private:
  void keep(Kind kind, const std::string& path, Json value) {
    if (taken_.kind != Kind::kNone) refuse(path, concat("cannot go with ", taken_.field));
    taken_ = {kind, path, std::move(value)};
  }

  Warnings& warnings_;
  Structure taken_;
};

}  // namespace

Structure parse_structure(Fields& fields, Warnings& warnings) {
  Reader reader(warnings);
  reader.response_format(fields);
  reader.structured_outputs(fields);
  reader.schema(fields, "guided_json");
  reader.text(fields, "guided_regex", Kind::kRegex);
  reader.choice(fields, "guided_choice");
  reader.text(fields, "guided_grammar", Kind::kGrammar);
  reader.schema(fields, "json_schema");
  reader.text(fields, "grammar", Kind::kGrammar);
  for (const char* name : {"structural_tag", "guided_whitespace_pattern"}) {
    if (fields.find(name) != nullptr) {
      refuse(fields.path_of(name), "is not possible here; use grammar, or tools");
    }
  }
  return reader.take();
}

}  // namespace replayssm::server
