#include "model/formats/gguf_writer.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "model/formats/gguf.h"

namespace replayssm {
namespace {

constexpr int64_t kAlignment = 32;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_text(std::string& out, const std::string& text) {
  put<uint64_t>(out, text.size());
  out += text;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void GgufWriter::key(const std::string& key, uint32_t kind) {
  put_text(pairs_, key);
  put(pairs_, kind);
  ++n_pairs_;
}

void GgufWriter::text(const std::string& name, const std::string& value) {
  key(name, static_cast<uint32_t>(GgufKind::kString));
  put_text(pairs_, value);
}

void GgufWriter::u32(const std::string& name, uint32_t value) {
  key(name, static_cast<uint32_t>(GgufKind::kU32));
  put(pairs_, value);
}

void GgufWriter::f32(const std::string& name, float value) {
  key(name, static_cast<uint32_t>(GgufKind::kF32));
  put(pairs_, value);
}

void GgufWriter::boolean(const std::string& name, bool value) {
  key(name, static_cast<uint32_t>(GgufKind::kBool));
  put<uint8_t>(pairs_, value ? 1 : 0);
}

void GgufWriter::texts(const std::string& name, const std::vector<std::string>& values) {
  key(name, static_cast<uint32_t>(GgufKind::kArray));
  put(pairs_, static_cast<uint32_t>(GgufKind::kString));
  put<uint64_t>(pairs_, values.size());
  for (const std::string& value : values) put_text(pairs_, value);
}

void GgufWriter::i32s(const std::string& name, const std::vector<int32_t>& values) {
  key(name, static_cast<uint32_t>(GgufKind::kArray));
  put(pairs_, static_cast<uint32_t>(GgufKind::kI32));
  put<uint64_t>(pairs_, values.size());
  for (const int32_t value : values) put(pairs_, value);
}

void GgufWriter::tensor(const std::string& name, BlockType type, std::vector<int64_t> shape,
                        std::function<void(std::byte*)> fill) {
  const BlockShape& block = *find_block_shape(static_cast<int32_t>(type));
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  tensors_.push_back(
      {name, type, std::move(shape), n / block.elements * block.bytes, std::move(fill)});
}

void GgufWriter::write(const std::string& path) const {
  std::string head = "GGUF";
  put<uint32_t>(head, 3);
  put<uint64_t>(head, tensors_.size());
  put<uint64_t>(head, n_pairs_);
  head += pairs_;
  int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_text(head, tensor.name);
    put(head, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d > 0; --d) put<int64_t>(head, tensor.shape[d - 1]);
    put(head, static_cast<int32_t>(tensor.type));
    put(head, offset);
    offset += aligned(tensor.bytes);
  }
  head.resize(static_cast<size_t>(aligned(static_cast<int64_t>(head.size()))));
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) fail(path, ": cannot write: ", std::strerror(errno));
  bool written = std::fwrite(head.data(), 1, head.size(), file) == head.size();
  for (const Tensor& tensor : tensors_) {
    if (!written) break;
    std::vector<std::byte> bytes(static_cast<size_t>(aligned(tensor.bytes)));
    tensor.fill(bytes.data());
    written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  }
  written = std::fclose(file) == 0 && written;
  if (!written) fail(path, ": cannot write: ", std::strerror(errno));
}

}  // namespace replayssm
