#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_file.h"

namespace replayssm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;
constexpr size_t kMaxRank = 16;
constexpr std::string_view kLfsMark = "version https://git-lfs";

struct DTypeRow {
  FileDType dtype;
  const char* name;
  int64_t bytes;
};
constexpr DTypeRow kDTypes[] = {
    {FileDType::kF64, "F64", 8},        {FileDType::kF32, "F32", 4},
    {FileDType::kF16, "F16", 2},        {FileDType::kBF16, "BF16", 2},
    {FileDType::kF8E4M3, "F8_E4M3", 1}, {FileDType::kF8E5M2, "F8_E5M2", 1},
    {FileDType::kF8E8M0, "F8_E8M0", 1}, {FileDType::kI64, "I64", 8},
    {FileDType::kI32, "I32", 4},        {FileDType::kI16, "I16", 2},
    {FileDType::kI8, "I8", 1},          {FileDType::kU64, "U64", 8},
    {FileDType::kU32, "U32", 4},        {FileDType::kU16, "U16", 2},
    {FileDType::kU8, "U8", 1},          {FileDType::kBool, "BOOL", 1},
};

const DTypeRow& row_of(FileDType dtype) {
  for (const auto& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  fail("unknown file dtype ", static_cast<int32_t>(dtype));
}

// Names come from outside: control bytes would break the one line, and length would bury it.
std::string in_quotes(std::string_view name) {
  std::string out = "'";
  for (char c : name.substr(0, 200)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  if (name.size() > 200) out += "...";
  return out + "'";
}

// One entry of the header before it is checked.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Accepts exactly the header's grammar; anything else stops the parse with a reason. Streaming, so
// that a hostile header costs no tree, and duplicate keys are seen.
class HeaderReader : public json::json_sax_t {
 public:
  std::vector<Entry> entries;
  std::string reason;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(json::number_integer_t) override { return refuse("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) override {
    return refuse("a number that is no integer of 64 bits");
  }
  bool binary(json::binary_t&) override { return refuse("binary"); }

  bool number_unsigned(json::number_unsigned_t value) override {
    if (where_ != Where::kShape && where_ != Where::kOffsets) return refuse("a number");
    auto& list = where_ == Where::kShape ? *entries.back().shape : *entries.back().offsets;
    if (list.size() >= kMaxRank) return refuse("a list of more than 16 numbers");
    list.push_back(value);
    return true;
  }

  bool string(json::string_t& value) override {
    if (where_ == Where::kMetadata) return true;
    if (where_ != Where::kEntry || key_ != "dtype") return refuse("a string");
    entries.back().dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (where_ == Where::kOutside) {
      where_ = Where::kTop;
    } else if (where_ == Where::kTop && key_ == "__metadata__") {
      where_ = Where::kMetadata;
    } else if (where_ == Where::kTop) {
      entries.push_back({key_, {}, {}, {}});
      where_ = Where::kEntry;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    where_ = where_ == Where::kTop ? Where::kOutside : Where::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (where_ != Where::kEntry) return refuse("a list");
    if (key_ == "shape") {
      entries.back().shape.emplace();
      where_ = Where::kShape;
    } else if (key_ == "data_offsets") {
      entries.back().offsets.emplace();
      where_ = Where::kOffsets;
    } else {
      return refuse("a list");
    }
    return true;
  }

  bool end_array() override {
    where_ = Where::kEntry;
    return true;
  }

  bool key(json::string_t& value) override {
    key_ = std::move(value);
    if (where_ != Where::kEntry) return true;
    const Entry& entry = entries.back();
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    const bool twice = (key_ == "dtype" && entry.dtype) || (key_ == "shape" && entry.shape) ||
                       (key_ == "data_offsets" && entry.offsets);
    if (known && !twice) return true;
    reason = concat("tensor ", in_quotes(entry.name), " has ", known ? "two fields " : "a field ",
                    in_quotes(key_), known ? "" : ", which the format does not have");
    return false;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    reason = concat("the header is no JSON: ", in_quotes(error.what()));
    return false;
  }

 private:
  enum class Where { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets };

  bool refuse(const char* what) {
    const bool in_entry =
        where_ == Where::kEntry || where_ == Where::kShape || where_ == Where::kOffsets;
    reason =
        concat("the header has ", what, " where it may not stand, ",
               in_entry ? "in tensor " : "at ", in_quotes(in_entry ? entries.back().name : key_));
    return false;
  }

  Where where_ = Where::kOutside;
  std::string key_;
};

TensorView checked_tensor(const Entry& entry, std::span<const std::byte> data,
                          std::string_view path) {
  const std::string where = concat(path, ": tensor ", in_quotes(entry.name));
  if (!entry.dtype) fail(where, " has no dtype");
  if (!entry.shape) fail(where, " has no shape");
  if (!entry.offsets || entry.offsets->size() != 2) {
    fail(where, " needs data_offsets of two numbers");
  }
  TensorView view;
  view.name = entry.name;
  view.path = path;
  const auto* row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                 [&](const DTypeRow& r) { return *entry.dtype == r.name; });
  if (row == std::end(kDTypes)) fail(where, " has the unknown dtype ", in_quotes(*entry.dtype));
  view.dtype = row->dtype;

  uint64_t bytes = static_cast<uint64_t>(row->bytes);
  for (uint64_t dim : *entry.shape) {
    if (dim > INT64_MAX || __builtin_mul_overflow(bytes, dim, &bytes) || bytes > INT64_MAX) {
      fail(where, " has a shape whose size overflows 64 bits");
    }
    view.shape.push_back(static_cast<int64_t>(dim));
  }
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data.size()) {
    fail(where, " lies at bytes [", begin, ", ", end, ") of a data section of ", data.size(),
         " bytes; the file is cut short or its header is wrong");
  }
  if (end - begin != bytes) {
    fail(where, " of type ", row->name, " and shape ", view.shape_text(), " needs ", bytes,
         " bytes, its data_offsets span ", end - begin);
  }
  view.data = data.data() + begin;
  view.bytes = static_cast<int64_t>(bytes);
  return view;
}

// The ranges must follow one another from 0 to the end of the data.
void check_tiling(std::vector<TensorView>& tensors, std::span<const std::byte> data,
                  std::string_view path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    const int64_t begin = tensor.data - data.data();
    if (begin != at) {
      fail(path, ": tensor ", in_quotes(tensor.name),
           begin < at ? " overlaps" : " leaves a gap after",
           " the tensor before it (starts at byte ", begin, ", expected ", at, ")");
    }
    at += tensor.bytes;
  }
  if (static_cast<uint64_t>(at) != data.size()) {
    fail(path, ": ", data.size() - at, " bytes follow the last tensor",
         tensors.empty() ? "" : concat(" ", in_quotes(tensors.back().name)));
  }
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

json parse_index(const std::string& path) {
  json index = read_json_file(path);
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(path, ": needs to be a JSON object with an object weight_map");
  }
  return index;
}

// The names of a folder's files that may hold its tensors, and of its indexes.
struct Listing {
  std::vector<std::string> files, indexes;
};

Listing list_folder(const std::string& folder) {
  constexpr std::string_view kFile = ".safetensors", kIndex = ".safetensors.index.json";
  // A copy of the weights in another form, and what is put on top of them.
  constexpr std::string_view kOthers[] = {"consolidated", "adapter_", "mtp-"};
  Listing out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool other =
        name.starts_with(".") || std::any_of(std::begin(kOthers), std::end(kOthers),
                                             [&](auto part) { return name.starts_with(part); });
    if (name.ends_with(kFile) && !other) out.files.push_back(name);
    if (name.ends_with(kIndex) && !other) out.indexes.push_back(name);
  }
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.indexes.begin(), out.indexes.end());
  return out;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "x-00002-of-00004.safetensors": "x-", 2 and 4.
struct ShardName {
  std::string set;
  int64_t number = 0, count = 0;
};

std::optional<ShardName> shard_name(const std::string& file) {
  const std::string stem = file.substr(0, file.rfind(".safetensors"));
  const size_t of = stem.rfind("-of-");
  if (of == stem.npos) return std::nullopt;
  const size_t dash = stem.rfind('-', of - 1);
  if (of == 0 || dash == stem.npos) return std::nullopt;
  ShardName out{stem.substr(0, dash + 1)};
  const auto read = [&](size_t begin, size_t end, int64_t& number) {
    const char* last = stem.data() + end;
    const auto [next, error] = std::from_chars(stem.data() + begin, last, number);
    return error == std::errc{} && next == last;
  };
  if (!read(dash + 1, of, out.number) || !read(of + 4, stem.size(), out.count)) return std::nullopt;
  return out;
}

// Without an index: the one file, or every shard of one set.
std::vector<std::string> shards_of(const std::string& folder,
                                   const std::vector<std::string>& files) {
  if (holds(files, "model.safetensors")) return {"model.safetensors"};
  const auto first = shard_name(files.front());
  if (files.size() == 1 && !first) return files;
  for (const std::string& file : files) {
    const auto shard = shard_name(file);
    if (first && shard && shard->set == first->set && shard->count == first->count) continue;
    fail(folder, ": has no model.safetensors and no index, but several files, ",
         in_quotes(files.front()), " and ", in_quotes(file != files.front() ? file : files.back()));
  }
  if (static_cast<int64_t>(files.size()) != first->count) {
    fail(folder, ": has ", files.size(), " of the ", first->count, " files ", first->set,
         "*-of-*.safetensors; fetch the others");
  }
  return files;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

template <typename T>
T load_at(const TensorView& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

const char* file_dtype_name(FileDType dtype) { return row_of(dtype).name; }
int64_t file_dtype_bytes(FileDType dtype) { return row_of(dtype).bytes; }

int64_t TensorView::n_elements() const { return bytes / file_dtype_bytes(dtype); }

std::string TensorView::shape_text() const {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += concat(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

std::vector<TensorView> parse_safetensors(std::span<const std::byte> file, std::string_view path) {
  const char* text = reinterpret_cast<const char*>(file.data());
  if (std::string_view(text, file.size()).starts_with(kLfsMark)) {
    fail(path, ": is a Git LFS pointer, not the file; fetch it with `git lfs pull`");
  }
  if (file.size() < 8) fail(path, ": is no safetensors file: ", file.size(), " bytes");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMaxHeaderBytes) {
    fail(path, ": is no safetensors file: its header would be ", header_bytes,
         " bytes (at most 100 MB)");
  }
  if (header_bytes > file.size() - 8) {
    fail(path, ": the header of ", header_bytes, " bytes does not fit the file of ", file.size(),
         " bytes; the file is cut short");
  }
  HeaderReader reader;
  if (!json::sax_parse(text + 8, text + 8 + header_bytes, &reader)) {
    fail(path, ": ", reader.reason);
  }
  const auto data = file.subspan(8 + header_bytes);
  std::vector<TensorView> tensors;
  tensors.reserve(reader.entries.size());
  std::vector<std::string_view> names;
  for (const Entry& entry : reader.entries) {
    tensors.push_back(checked_tensor(entry, data, path));
    names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    fail(path, ": tensor ", in_quotes(*twice), " is there twice");
  }
  check_tiling(tensors, data, path);
  return tensors;
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, ": cannot open: ", std::strerror(errno));
  struct stat info{};
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  void* map = nullptr;
  if (regular && info.st_size > 0) {
    map = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  close(fd);
  if (!regular) fail(path, ": is no regular file");
  if (map == MAP_FAILED) fail(path, ": cannot map: ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(map);
  size_ = static_cast<size_t>(info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void TensorFiles::add_file(const std::string& path) {
  maps_.push_back(std::make_unique<MappedFile>(path));
  for (auto& tensor : parse_safetensors(maps_.back()->bytes(), path)) {
    const auto [it, added] = index_.emplace(tensor.name, tensors_.size());
    if (!added) {
      fail(path, ": tensor ", in_quotes(tensor.name), " is in ", tensors_[it->second].path, " too");
    }
    tensors_.push_back(std::move(tensor));
  }
}

TensorFiles TensorFiles::open_file(const std::string& path) {
  TensorFiles files;
  files.source_ = path;
  files.add_file(path);
  return files;
}

bool TensorFiles::in_folder(const std::string& folder) {
  const Listing listing = list_folder(folder);
  return !listing.files.empty() || !listing.indexes.empty();
}

TensorFiles TensorFiles::open_folder(const std::string& folder) {
  const Listing listing = list_folder(folder);
  const std::string usual = "model.safetensors.index.json";
  std::string index = holds(listing.indexes, usual) ? usual : "";
  if (index.empty() && listing.indexes.size() == 1) index = listing.indexes.front();
  if (!index.empty()) return open_shards(folder, folder + "/" + index);
  if (listing.files.empty()) {
    fail(folder, ": has neither model.safetensors nor model.safetensors.index.json");
  }
  const auto shards = shards_of(folder, listing.files);
  if (shards.size() == 1) return open_file(folder + "/" + shards.front());
  TensorFiles files;
  files.source_ = folder;
  for (const std::string& shard : shards) files.add_file(folder + "/" + shard);
  return files;
}

TensorFiles TensorFiles::open_shards(const std::string& folder, const std::string& index_path) {
  const json index = parse_index(index_path);
  std::map<std::string, std::string> shards;  // and a tensor of each
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) fail(index_path, ": tensor ", in_quotes(name), " names no file");
    const auto file = shard.get<std::string>();
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      fail(index_path, ": tensor ", in_quotes(name), " names ", in_quotes(file),
           ", which is no file of the folder");
    }
    shards.emplace(file, name);
  }
  // An index that was left behind when its shards were made one file.
  const bool left_behind = std::none_of(shards.begin(), shards.end(), [&](const auto& shard) {
    return exists(folder + "/" + shard.first);
  });
  const std::string whole = folder + "/model.safetensors";
  if (left_behind && exists(whole)) return open_file(whole);
  TensorFiles files;
  files.source_ = folder;
  for (const auto& [shard, tensor] : shards) {
    const std::string path = folder + "/" + shard;
    if (!exists(path)) {
      fail(path, ": is missing; ", index_path, " says that it holds tensor ", in_quotes(tensor));
    }
    files.add_file(path);
  }
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (files.find(name) != nullptr) continue;
    fail(folder, "/", shard.get<std::string>(), ": has no tensor ", in_quotes(name), ", though ",
         index_path, " says so");
  }
  return files;
}

const TensorView* TensorFiles::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const TensorView& TensorFiles::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) fail(source_, ": has no tensor ", in_quotes(name));
  return *tensor;
}

void widen_to_fp32(const TensorView& tensor, float* out) {
  const int64_t n = tensor.n_elements();
  switch (tensor.dtype) {
    case FileDType::kF32:
      if (n > 0) std::memcpy(out, tensor.data, static_cast<size_t>(tensor.bytes));
      return;
    case FileDType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(load_at<uint16_t>(tensor, i));
      return;
    case FileDType::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        out[i] = std::bit_cast<float>(static_cast<uint32_t>(load_at<uint16_t>(tensor, i)) << 16);
      }
      return;
    default:
      fail(tensor.path, ": tensor ", in_quotes(tensor.name), " is ", file_dtype_name(tensor.dtype),
           "; F32, F16 and BF16 weights can be read");
  }
}

std::vector<float> read_fp32(const TensorView& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.n_elements()));
  widen_to_fp32(tensor, out.data());
  return out;
}

std::vector<int64_t> read_int64(const TensorView& tensor) {
  std::vector<int64_t> out(static_cast<size_t>(tensor.n_elements()));
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    switch (tensor.dtype) {
      case FileDType::kI64:
        out[i] = load_at<int64_t>(tensor, i);
        break;
      case FileDType::kI32:
        out[i] = load_at<int32_t>(tensor, i);
        break;
      case FileDType::kU8:
        out[i] = load_at<uint8_t>(tensor, i);
        break;
      default:
        fail(tensor.path, ": tensor ", in_quotes(tensor.name), " is ",
             file_dtype_name(tensor.dtype), "; I64, I32 and U8 can be read as integers");
    }
  }
  return out;
}

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  json header = json::object();
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    int64_t bytes = file_dtype_bytes(tensor.dtype);
    for (int64_t dim : tensor.shape) bytes *= dim;
    if (header.contains(tensor.name))
      fail(path, ": tensor ", in_quotes(tensor.name), " given twice");
    header[tensor.name] = {{"dtype", file_dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();

  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) fail(path, ": cannot write: ", std::strerror(errno));
  bool written = std::fwrite(&header_bytes, 8, 1, file) == 1 &&
                 std::fwrite(text.data(), text.size(), 1, file) == 1;
  for (const auto& tensor : tensors) {
    const auto& range = header[tensor.name]["data_offsets"];
    const auto bytes = static_cast<size_t>(range[1].get<int64_t>() - range[0].get<int64_t>());
    written = written && (bytes == 0 || std::fwrite(tensor.data, bytes, 1, file) == 1);
  }
  written = std::fclose(file) == 0 && written;
  if (!written) fail(path, ": cannot write: ", std::strerror(errno));
}

}  // namespace replayssm
