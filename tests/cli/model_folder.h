// A fixture with a tokenizer, so that `generate` can be run on it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "../model/testing.h"
#include "model/tokenizer/byte_level.h"

namespace replayssm {

// Byte tokens only. The fixtures' 120 ids are printable ASCII, then "\n", then bytes that only
// stand inside longer characters: texts full of broken UTF-8. The other bytes lie beyond.
inline std::string byte_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  int id = 0;
  const auto add = [&](int first, int last) {
    for (int byte = first; byte <= last; ++byte) {
      vocab[model::byte_char(static_cast<uint8_t>(byte))] = id++;
    }
  };
  add(32, 126);
  add('\n', '\n');
  add(0x80, 0x8f);
  add(0xe0, 0xe7);
  add(0, '\n' - 1);
  add('\n' + 1, 31);
  add(127, 127);
  add(0x90, 0xdf);
  add(0xe8, 0xff);
  const nlohmann::json json = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return json.dump();
}

class ModelFolder : public TempFolder {
 public:
  explicit ModelFolder(const std::string& fixture_name) {
    copy_fixture(fixture_name);
    write_text(file("tokenizer.json"), byte_tokenizer());
  }
};

}  // namespace replayssm
