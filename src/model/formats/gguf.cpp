#include "model/formats/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace replayssm {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxNameBytes = 1 << 16;
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int64_t kMaxSplits = 1024;

// Names come from outside: control bytes would break the one line, and length would bury it.
std::string in_quotes(std::string_view name) {
  std::string out = "'";
  for (const char c : name.substr(0, 200)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  if (name.size() > 200) out += "...";
  return out + "'";
}

int64_t kind_bytes(GgufKind kind) {
  switch (kind) {
    case GgufKind::kU8:
    case GgufKind::kI8:
    case GgufKind::kBool:
      return 1;
    case GgufKind::kU16:
    case GgufKind::kI16:
      return 2;
    case GgufKind::kU32:
    case GgufKind::kI32:
    case GgufKind::kF32:
      return 4;
    case GgufKind::kU64:
    case GgufKind::kI64:
    case GgufKind::kF64:
      return 8;
    default:
      return 0;  // a string or an array
  }
}

template <typename T>
T load(std::span<const std::byte> bytes, int64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string_view path) : file_(file), path_(path) {}

  GgufContents read() {
    const std::string_view head(reinterpret_cast<const char*>(file_.data()),
                                std::min<size_t>(file_.size(), 23));
    if (head == "version https://git-lfs") {
      fail(path_, ": is a Git LFS pointer, not the file; fetch it with `git lfs pull`");
    }
    if (!head.starts_with("GGUF")) fail(path_, ": is no GGUF file");
    at_ = 4;
    const auto version = number<uint32_t>("the version");
    if (version == kVersion << 24) fail(path_, ": is of a big-endian machine; convert it again");
    if (version != kVersion) {
      fail(path_, ": is GGUF version ", version, "; only version 3 is supported");
    }
    const auto n_tensors = number<uint64_t>("the count of tensors");
    const auto n_pairs = number<uint64_t>("the count of keys");
    if (n_tensors > kMaxTensors) fail(path_, ": says that it has ", n_tensors, " tensors");
    if (n_pairs > kMaxPairs) fail(path_, ": says that it has ", n_pairs, " keys");
    for (uint64_t i = 0; i < n_pairs; ++i) read_pair();
    for (uint64_t i = 0; i < n_tensors; ++i) read_tensor();
    place_tensors();
    return std::move(out_);
  }

 private:
  std::span<const std::byte> take(uint64_t bytes, const std::string& what) {
    if (bytes > file_.size() - at_) {
      fail(path_, ": ", what, " needs ", bytes, " bytes, but ", file_.size() - at_,
           " are left; the file is cut short or its header is wrong");
    }
    const auto out = file_.subspan(at_, bytes);
    at_ += bytes;
    return out;
  }

  template <typename T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what));
  }

  std::span<const std::byte> counted(const std::string& what) {
    const auto bytes = number<uint64_t>(what);
    return take(bytes, what);
  }

  std::string name(const char* what) {
    const auto bytes = counted(what);
    if (bytes.size() > kMaxNameBytes) fail(path_, ": ", what, " has ", bytes.size(), " bytes");
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  GgufKind kind(const std::string& what) {
    const auto kind = number<uint32_t>(what);
    if (kind > static_cast<uint32_t>(GgufKind::kF64)) {
      fail(path_, ": ", what, " has the unknown type ", kind);
    }
    return static_cast<GgufKind>(kind);
  }

  void read_pair() {
    const std::string key = name("a key");
    const std::string what = concat("key ", in_quotes(key));
    GgufValue value;
    value.kind = kind(what);
    if (value.kind == GgufKind::kArray) {
      value.array = true;
      value.kind = kind(what);
      if (value.kind == GgufKind::kArray) fail(path_, ": ", what, " is an array of arrays");
      const auto count = number<uint64_t>(what);
      if (count > file_.size() - at_) {
        fail(path_, ": ", what, " says that it has ", count,
             " items, more than the file has bytes");
      }
      value.count = static_cast<int64_t>(count);
    }
    if (value.kind == GgufKind::kString) {
      const size_t begin = at_;
      for (int64_t i = 0; i < value.count; ++i) counted(what);
      value.bytes = file_.subspan(begin, at_ - begin);
    } else {
      // The count is at most the file's size: no overflow.
      const auto bytes = static_cast<uint64_t>(value.count * kind_bytes(value.kind));
      value.bytes = take(bytes, what);
    }
    if (!out_.values.emplace(key, value).second) fail(path_, ": ", what, " is there twice");
  }

  void read_tensor() {
    GgufTensor tensor;
    tensor.name = name("a tensor's name");
    tensor.path = path_;
    const std::string what = concat("tensor ", in_quotes(tensor.name));
    const auto rank = number<uint32_t>(what);
    if (rank > kMaxRank) fail(path_, ": ", what, " has ", rank, " dimensions; at most 4 can be");
    uint64_t elements = 1;
    for (uint32_t d = 0; d < rank; ++d) {
      const auto dim = number<uint64_t>(what);
      if (dim == 0) fail(path_, ": ", what, " has no elements");
      if (dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) ||
          elements > INT64_MAX / 8) {
        fail(path_, ": ", what, " has a shape whose size overflows 64 bits");
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    const auto type = number<int32_t>(what);
    const BlockShape* shape = find_block_shape(type);
    if (shape == nullptr) {
      fail(path_, ": ", what, " is ", block_type_name(type), ", which is not supported");
    }
    tensor.type = shape->type;
    const auto width = static_cast<uint64_t>(rank == 0 ? 1 : tensor.shape.back());
    if (width % static_cast<uint64_t>(shape->elements) != 0) {
      fail(path_, ": ", what, " has rows of ", width, "; ", shape->name, " needs a multiple of ",
           shape->elements);
    }
    tensor.bytes = static_cast<int64_t>(elements) / shape->elements * shape->bytes;
    offsets_.push_back(number<uint64_t>(what));
    out_.tensors.push_back(std::move(tensor));
  }

  uint64_t alignment() const {
    const auto it = out_.values.find("general.alignment");
    if (it == out_.values.end()) return 32;
    const GgufValue& value = it->second;
    const uint64_t alignment =
        value.kind == GgufKind::kU32 && !value.array ? load<uint32_t>(value.bytes) : 0;
    if (alignment == 0 || alignment % 8 != 0 || alignment > kMaxAlignment) {
      fail(path_, ": key general.alignment must be a multiple of 8 up to ", kMaxAlignment);
    }
    return alignment;
  }

  // Every tensor must lie in the data; none may share bytes with another.
  void place_tensors() {
    const uint64_t align = alignment();
    const uint64_t start = (at_ + align - 1) / align * align;
    const auto data = file_.subspan(std::min<uint64_t>(start, file_.size()));
    std::vector<size_t> order(out_.tensors.size());
    std::vector<std::string_view> names;
    for (size_t i = 0; i < order.size(); ++i) {
      GgufTensor& tensor = out_.tensors[i];
      const uint64_t offset = offsets_[i], bytes = static_cast<uint64_t>(tensor.bytes);
      if (offset % align != 0 || offset > data.size() || bytes > data.size() - offset) {
        fail(path_, ": tensor ", in_quotes(tensor.name), " of ", bytes, " bytes lies at byte ",
             offset, " of ", data.size(), " bytes of data",
             offset % align != 0 ? ", which is not aligned"
                                 : "; the file is cut short or its header is wrong");
      }
      tensor.data = data.data() + offset;
      order[i] = i;
      names.push_back(tensor.name);
    }
    std::sort(names.begin(), names.end());
    if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
      fail(path_, ": tensor ", in_quotes(*twice), " is there twice");
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return offsets_[a] != offsets_[b] ? offsets_[a] < offsets_[b]
                                        : out_.tensors[a].bytes < out_.tensors[b].bytes;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = out_.tensors[order[i - 1]];
      const GgufTensor& tensor = out_.tensors[order[i]];
      if (before.data + before.bytes > tensor.data) {
        fail(path_, ": tensor ", in_quotes(tensor.name), " overlaps ", in_quotes(before.name));
      }
    }
  }

  std::span<const std::byte> file_;
  std::string path_;
  size_t at_ = 0;
  std::vector<uint64_t> offsets_;
  GgufContents out_;
};

// The files of a split set from one of them: "name-00002-of-00003.gguf".
std::string split_path(const std::string& path, int64_t index, int64_t count) {
  char own[32], wanted[32];
  constexpr size_t kSuffix = 20;  // "-00001-of-00003.gguf"
  if (path.size() < kSuffix) return "";
  for (int64_t i = 1; i <= count; ++i) {
    std::snprintf(own, sizeof(own), "-%05d-of-%05d.gguf", static_cast<int>(i),
                  static_cast<int>(count));
    if (!path.ends_with(own)) continue;
    std::snprintf(wanted, sizeof(wanted), "-%05d-of-%05d.gguf", static_cast<int>(index),
                  static_cast<int>(count));
    return path.substr(0, path.size() - kSuffix) + wanted;
  }
  return "";
}

int64_t integer_at(const GgufValue& value, int64_t i, bool& valid) {
  valid = true;
  switch (value.kind) {
    case GgufKind::kU8:
      return load<uint8_t>(value.bytes, i);
    case GgufKind::kI8:
      return load<int8_t>(value.bytes, i);
    case GgufKind::kU16:
      return load<uint16_t>(value.bytes, i);
    case GgufKind::kI16:
      return load<int16_t>(value.bytes, i);
    case GgufKind::kU32:
      return load<uint32_t>(value.bytes, i);
    case GgufKind::kI32:
      return load<int32_t>(value.bytes, i);
    case GgufKind::kI64:
      return load<int64_t>(value.bytes, i);
    case GgufKind::kU64: {
      const auto wide = load<uint64_t>(value.bytes, i);
      valid = wide <= INT64_MAX;
      return static_cast<int64_t>(wide & INT64_MAX);
    }
    default:
      valid = false;
      return 0;
  }
}

}  // namespace

int64_t GgufTensor::n_elements() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

std::string GgufTensor::shape_text() const {
  TensorView view;
  view.shape = shape;
  return view.shape_text();
}

GgufContents parse_gguf(std::span<const std::byte> file, std::string_view path) {
  return Reader(file, path).read();
}

GgufFiles GgufFiles::open(const std::string& path) {
  GgufFiles files;
  files.source_ = path;
  const auto add = [&files](const std::string& file) {
    files.maps_.push_back(std::make_unique<MappedFile>(file));
    GgufContents contents = parse_gguf(files.maps_.back()->bytes(), file);
    for (GgufTensor& tensor : contents.tensors) {
      const auto [it, added] = files.index_.emplace(tensor.name, files.tensors_.size());
      if (!added) {
        fail(file, ": tensor ", in_quotes(tensor.name), " is in ", files.tensors_[it->second].path,
             " too");
      }
      files.tensors_.push_back(std::move(tensor));
    }
    return std::move(contents.values);
  };
  files.values_ = add(path);
  const int64_t count = files.integer_or("split.count", 1, 0, kMaxSplits);
  if (count <= 1) return files;
  if (split_path(path, 1, count).empty()) {
    fail(path, ": is part of a set of ", count,
         " files; their names must end in -00001-of-0000N.gguf");
  }
  for (int64_t i = 1; i <= count; ++i) {
    const std::string other = split_path(path, i, count);
    if (other == path) continue;
    auto values = add(other);
    if (i == 1) files.values_ = std::move(values);
  }
  const auto expected = files.integer_or("split.tensors.count", 0, 0, INT32_MAX);
  if (expected != 0 && expected != static_cast<int64_t>(files.tensors_.size())) {
    files.refuse("split.tensors.count", "is ", expected, ", but the files have ",
                 files.tensors_.size(), " tensors");
  }
  return files;
}

const GgufTensor* GgufFiles::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const GgufTensor& GgufFiles::at(std::string_view name) const {
  const GgufTensor* tensor = find(name);
  if (tensor == nullptr) fail(source_, ": has no tensor ", in_quotes(name));
  return *tensor;
}

const GgufValue& GgufFiles::value(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) refuse(key, "is missing");
  return it->second;
}

int64_t GgufFiles::integer(const std::string& key, int64_t min, int64_t max) const {
  const std::vector<int64_t> list = integers(key, min, max);
  if (list.size() != 1) refuse(key, "must be one whole number");
  return list[0];
}

int64_t GgufFiles::integer_or(const std::string& key, int64_t fallback, int64_t min,
                              int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

std::vector<int64_t> GgufFiles::integers(const std::string& key, int64_t min, int64_t max) const {
  const GgufValue& v = value(key);
  std::vector<int64_t> out(static_cast<size_t>(v.count));
  for (int64_t i = 0; i < v.count; ++i) {
    bool valid = false;
    const int64_t n = integer_at(v, i, valid);
    if (!valid) refuse(key, "must be a whole number of 64 bits");
    if (n < min || n > max) refuse(key, "is ", n, ", must be ", min, " to ", max);
    out[static_cast<size_t>(i)] = n;
  }
  return out;
}

double GgufFiles::number(const std::string& key, double min, double max) const {
  const GgufValue& v = value(key);
  double n = 0.0;
  bool valid = !v.array;
  if (valid && v.kind == GgufKind::kF32) {
    n = load<float>(v.bytes);
  } else if (valid && v.kind == GgufKind::kF64) {
    n = load<double>(v.bytes);
  } else if (valid) {
    n = static_cast<double>(integer_at(v, 0, valid));
  }
  if (!valid || std::isnan(n)) refuse(key, "must be one number");
  if (n < min || n > max) refuse(key, "is ", n, ", must be ", min, " to ", max);
  return n;
}

double GgufFiles::number_or(const std::string& key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool GgufFiles::boolean_or(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const GgufValue& v = value(key);
  if (v.kind != GgufKind::kBool || v.array) refuse(key, "must be true or false");
  return v.bytes[0] != std::byte{0};
}

std::string GgufFiles::text(const std::string& key) const {
  const GgufValue& v = value(key);
  if (v.kind != GgufKind::kString || v.array) refuse(key, "must be text");
  return {reinterpret_cast<const char*>(v.bytes.data()) + 8, v.bytes.size() - 8};
}

std::string GgufFiles::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<std::string_view> GgufFiles::texts(const std::string& key) const {
  const GgufValue& v = value(key);
  if (v.kind != GgufKind::kString || !v.array) refuse(key, "must be a list of texts");
  std::vector<std::string_view> out;
  out.reserve(static_cast<size_t>(v.count));
  size_t at = 0;
  for (int64_t i = 0; i < v.count; ++i) {
    const auto bytes = load<uint64_t>(v.bytes.subspan(at));
    out.emplace_back(reinterpret_cast<const char*>(v.bytes.data()) + at + 8, bytes);
    at += 8 + bytes;
  }
  return out;
}

}  // namespace replayssm
