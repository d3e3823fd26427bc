// The GGUF container, version 3, of one file or of a split set.
//
//   "GGUF", u32 version, u64 tensors, u64 pairs
//   pairs:    key, type, value; a string is u64 length and bytes, an array type, u64 count, items
//   tensors:  name, u32 rank, u64 dimensions (fastest first), u32 block type, u64 offset
//   data, aligned to general.alignment; offsets count from its start
//
// Nothing in a file is trusted: every length is checked against what is left of it, and one line
// names the file and the key or tensor that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "model/formats/blocks.h"
#include "model/safetensors.h"

namespace replayssm {

struct GgufTensor {
  std::string name;
  BlockType type = BlockType::kF32;
  std::vector<int64_t> shape;  // slowest dimension first, as in safetensors
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::string path;  // of the file, for messages

  int64_t n_elements() const;
  std::string shape_text() const;
};

enum class GgufKind : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

// A value where it lies in the map. Of an array `kind` is the items' and `bytes` all of them.
struct GgufValue {
  GgufKind kind = GgufKind::kU8;
  bool array = false;
  int64_t count = 1;
  std::span<const std::byte> bytes;
};

struct GgufContents {
  std::unordered_map<std::string, GgufValue> values;
  std::vector<GgufTensor> tensors;
};

// `path` is for error messages only. The contents point into `file`.
GgufContents parse_gguf(std::span<const std::byte> file, std::string_view path);

// An open file, or all files of a split set.
class GgufFiles {
 public:
  // Of a split set any file's path; all of them must be there.
  static GgufFiles open(const std::string& path);

  const GgufTensor* find(std::string_view name) const;
  const GgufTensor& at(std::string_view name) const;
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::string& source() const { return source_; }

  // Metadata, of the first file. Required values, and optional ones with a fallback; bounds are
  // inclusive. Whole numbers may have any integer type.
  bool has(const std::string& key) const { return values_.contains(key); }
  int64_t integer(const std::string& key, int64_t min, int64_t max) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t min, int64_t max) const;
  double number(const std::string& key, double min, double max) const;
  double number_or(const std::string& key, double fallback, double min, double max) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  std::vector<std::string_view> texts(const std::string& key) const;
  // One number counts as a list of one.
  std::vector<int64_t> integers(const std::string& key, int64_t min, int64_t max) const;

  template <typename... Parts>
  [[noreturn]] void refuse(const std::string& key, const Parts&... why) const {
    fail(source_, ": key ", key, " ", why...);
  }

 private:
  const GgufValue& value(const std::string& key) const;

  std::string source_;
  std::vector<std::unique_ptr<MappedFile>> maps_;
  std::unordered_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace replayssm
