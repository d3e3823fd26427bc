// The safetensors format: 8 bytes of header length (little endian), a JSON header, then the data.
//
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__":
//   {...}}
//
// Offsets count from the end of the header. A file is accepted only if its tensors tile the data
// section exactly: no gap, no overlap, nothing after the last one. Whatever else a file says is
// refused by one line that names the file and the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace replayssm {

enum class FileDType : int32_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,  // 2^(e - 127)
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};
const char* file_dtype_name(FileDType dtype);
int64_t file_dtype_bytes(FileDType dtype);

// A view into a mapped file; `data` has no alignment.
struct TensorView {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::string path;  // of the file, for messages

  int64_t n_elements() const;
  std::string shape_text() const;  // "[2, 3]"
};

// The tensors of one file's bytes in the order of their data. `path` is for error messages only.
std::vector<TensorView> parse_safetensors(std::span<const std::byte> file, std::string_view path);

// A read-only map of a whole file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// All tensors of one file, or of a model folder: the shards that a *.safetensors.index.json names,
// else model.safetensors, else the only such file or all shards of one "-00001-of-00004" set. Each
// tensor that an index names must be in one of the shards. Files of adapters are left out.
class TensorFiles {
 public:
  // Whether a folder has any.
  static bool in_folder(const std::string& folder);
  static TensorFiles open_file(const std::string& path);
  static TensorFiles open_folder(const std::string& folder);

  // Null if there is none.
  const TensorView* find(std::string_view name) const;
  // Refuses a missing tensor.
  const TensorView& at(std::string_view name) const;
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // The folder or file that was opened, for messages.
  const std::string& source() const { return source_; }

 private:
  void add_file(const std::string& path);
  static TensorFiles open_shards(const std::string& folder, const std::string& index_path);

  std::string source_;
  std::vector<std::unique_ptr<MappedFile>> maps_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// Element-wise widening to fp32 (F32, F16, BF16: exact). Refuses other types, naming the tensor.
void widen_to_fp32(const TensorView& tensor, float* out);
std::vector<float> read_fp32(const TensorView& tensor);
// Reads I64, I32 or U8 as int64; refuses other types.
std::vector<int64_t> read_int64(const TensorView& tensor);

// A tensor to write; `data` holds the elements in row-major order.
struct TensorToWrite {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// Writes in the order given, with a header padded to 8 bytes. Refuses what it cannot write.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors);

}  // namespace replayssm
