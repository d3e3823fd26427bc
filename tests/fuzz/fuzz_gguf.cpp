// Any bytes as a GGUF file: either an Error of one line, or tensors that lie in the file and
// decode.
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>

#include "core/error.h"
#include "model/cpu/weights_cpu.h"
#include "model/formats/gguf_model.h"
#include "model/formats/gguf_tokenizer.h"

namespace {

constexpr int64_t kMaxDecoded = 1 << 16;
constexpr int64_t kMaxLoaded = 1 << 20;

void decode(const replayssm::GgufTensor& tensor, std::span<const std::byte> file) {
  if (tensor.data < file.data() || tensor.data + tensor.bytes > file.data() + file.size()) {
    std::abort();
  }
  const int64_t n = tensor.n_elements();
  if (n > kMaxDecoded) return;
  std::vector<float> values(static_cast<size_t>(n));
  if (n > 0) replayssm::decode_blocks(tensor.type, tensor.data, n, values.data());
}

// A file to open: the readers of metadata, tokenizer and description need one.
void open_whole(const uint8_t* data, size_t size) {
  const std::string path = "/tmp/fuzz_gguf_" + std::to_string(getpid()) + ".gguf";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size) std::abort();
  std::fclose(file);
  const auto guarded = [](const auto& call) {
    try {
      call();
    } catch (const replayssm::Error& error) {
      if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    }
  };
  guarded([&] {
    const auto files = replayssm::GgufFiles::open(path);
    guarded([&] { replayssm::gguf_tokenizer_json(files); });
    guarded([&] { replayssm::gguf_chat_template(files); });
  });
  guarded([&] {
    auto model = replayssm::GgufModel::open(path);
    const auto& names = model.description().names;
    const auto& spec = model.description().spec;
    guarded([&] { model.matrix(names.embedding, spec.vocab, spec.hidden); });
    guarded([&] { model.vector(names.final_norm, spec.hidden); });
    for (const char* name : {"model.layers.0.linear_attn.in_proj_qkv.weight",
                             "model.layers.0.mlp.experts.1.up_proj.weight",
                             "backbone.layers.0.mixer.in_proj.weight"}) {
      guarded([&] { model.matrix(name, 64, spec.hidden); });
    }
    for (const char* name : {"model.layers.0.linear_attn.A_log", "backbone.layers.0.mixer.D"}) {
      guarded([&] { model.vector(name, 4); });
    }
    model.unread();
  });
  // As a load takes it.
  guarded([&] {
    const auto model = replayssm::Model::load(path, {});
    if (replayssm::weight_bytes_cpu(*model) > kMaxLoaded) return;
    replayssm::HostArena memory;
    replayssm::load_weights_cpu(*model, memory);
  });
  unlink(path.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    for (const auto& tensor : replayssm::parse_gguf(bytes, "fuzz").tensors) decode(tensor, bytes);
  } catch (const replayssm::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    return 0;
  }
  open_whole(data, size);
  return 0;
}
