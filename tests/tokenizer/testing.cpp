#include "testing.h"

#include <lzma.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "model/tokenizer/byte_level.h"

namespace replayssm::model::testing {

using nlohmann::json;

std::string read_xz(const std::string& name) {
  const std::string path =
      std::string(REPLAYSSM_SOURCE_DIR "/tests/data/tokenizer/") + name + ".xz";
  std::ifstream file(path, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, UINT64_MAX, 0) != LZMA_OK) throw std::runtime_error("liblzma");
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string out;
  std::vector<uint8_t> block(1 << 20);
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    stream.next_out = block.data();
    stream.avail_out = block.size();
    status = lzma_code(&stream, LZMA_FINISH);
    out.append(reinterpret_cast<const char*>(block.data()), block.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (status != LZMA_STREAM_END) throw std::runtime_error("cannot decompress " + path);
  return out;
}

std::vector<int32_t> read_ids(const std::string& name) {
  const std::string bytes = read_xz(name);
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  return ids;
}

const Tokenizer& qwen3() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(read_xz("qwen3_tokenizer.json"), "qwen3_tokenizer.json");
  return tokenizer;
}

const Tokenizer& demo() {
  static const Tokenizer tokenizer =
      Tokenizer::load(REPLAYSSM_SOURCE_DIR "/models/demo-gdn/tokenizer.json");
  return tokenizer;
}

json small_json() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_char(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["Ġa"] = 258;
  json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c", "Ġ a"}}}}};
}

Tokenizer small(const json& value) { return Tokenizer::parse(value.dump(), "small.json"); }

}  // namespace replayssm::model::testing
