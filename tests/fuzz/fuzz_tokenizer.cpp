// Any bytes as a tokenizer.json, then any text through it. The input is a JSON text, a NUL byte and
// a text to encode. If it begins with '+', the JSON behind that is a merge patch (RFC 7396) to a
// small sound file, so that the fuzzer gets past the vocabulary.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/tokenizer.h"

namespace {

using nlohmann::json;
using replayssm::model::StreamDecoder;
using replayssm::model::Tokenizer;

const json& sound_file() {
  static const json file = [] {
    json vocab = json::object();
    for (int byte = 0; byte < 256; ++byte) {
      vocab[replayssm::model::byte_char(static_cast<uint8_t>(byte))] = byte;
    }
    for (const char* token : {"ab", "abc", "aa", "aaaa", "Ġa"}) vocab[token] = vocab.size();
    json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    const json merges = {"a b", "ab c", "a a", "aa aa", "Ġ a"};
    return json{{"pre_tokenizer", byte_level},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  }();
  return file;
}

// Whether text comes back as it was: nothing in the patch changes, adds or drops text.
bool keeps_text(std::string_view patch) {
  for (const char* key : {"normalizer", "added_tokens", "pre_tokenizer", "model"}) {
    if (patch.find(key) != patch.npos) return false;
  }
  return patch.find('\\') == patch.npos;
}

void use(const Tokenizer& tokenizer, std::string_view text, bool keeps) {
  for (const bool parse_special : {true, false}) {
    std::vector<int32_t> ids;
    try {
      ids = tokenizer.encode(text, parse_special);
    } catch (const replayssm::Error&) {
      continue;  // the pattern exceeds PCRE2's limits
    }
    const std::string whole = tokenizer.decode(ids);
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) {
      REPLAYSSM_CHECK(id >= 0 && id < tokenizer.vocab_size(), id);
      streamed += stream.push(id);
    }
    streamed += stream.finish();
    REPLAYSSM_CHECK(streamed == replayssm::to_valid_utf8(whole), streamed);
    REPLAYSSM_CHECK(!keeps || whole == replayssm::to_valid_utf8(text), whole);
  }
  // The text's bytes as ids.
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    ids.push_back(static_cast<int8_t>(text[i]) * 256 + static_cast<uint8_t>(text[i + 1]));
  }
  tokenizer.decode(ids, true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view input(reinterpret_cast<const char*>(data), n_bytes);
  const size_t end = input.find('\0');
  std::string_view source = input.substr(0, end);
  const std::string_view text = end == input.npos ? std::string_view() : input.substr(end + 1);
  bool keeps = false;
  std::string patched;
  if (source.starts_with('+')) {
    source.remove_prefix(1);
    keeps = keeps_text(source);
    const json patch = json::parse(source, nullptr, false);
    if (!patch.is_object()) return -1;
    json file = sound_file();
    file.merge_patch(patch);
    patched = file.dump(-1, ' ', false, json::error_handler_t::replace);
    source = patched;
  }
  try {
    use(Tokenizer::parse(source, "fuzz"), text, keeps);
  } catch (const replayssm::Error& error) {
    REPLAYSSM_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos,
                    error.what());
  }
  return 0;
}
