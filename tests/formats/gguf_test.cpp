#include "model/formats/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "../model/testing.h"

namespace replayssm {
namespace {

std::string golden() { return std::string(REPLAYSSM_SOURCE_DIR) + "/tests/data/gguf/written.gguf"; }

std::vector<float> values(const GgufTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.n_elements()));
  decode_blocks(tensor.type, tensor.data, tensor.n_elements(), out.data());
  return out;
}

// A file by the `gguf` package's writer.
TEST(Gguf, ReadsWhatTheGgufPackageWrites) {
  const auto files = GgufFiles::open(golden());
  EXPECT_EQ(files.text("general.architecture"), "qwen35");
  EXPECT_EQ(files.integer("test.u8", 0, 255), 200);
  EXPECT_EQ(files.integer("test.i16", -1000, 1000), -300);
  EXPECT_EQ(files.integer("test.u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(files.number("test.f32", 0, 1), 0.25);
  EXPECT_EQ(files.number("test.f64", 0, 1e308), 1e300);
  EXPECT_TRUE(files.boolean_or("test.bool", false));
  EXPECT_EQ(files.text("test.text"), "Ġhello\n");
  EXPECT_EQ(files.texts("test.texts"), (std::vector<std::string_view>{"a", "", "ünï"}));
  EXPECT_EQ(files.integers("test.numbers", 0, 9), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(files.integer_or("test.none", 7, 0, 9), 7);
  ASSERT_EQ(files.tensors().size(), 3u);
  const GgufTensor& packed = files.at("packed");
  EXPECT_EQ(packed.type, BlockType::kQ8_0);
  EXPECT_EQ(packed.shape, (std::vector<int64_t>{4, 64}));
  EXPECT_EQ(values(packed), values(files.at("packed.values")));
  EXPECT_EQ(files.at("plain").shape, (std::vector<int64_t>{4, 64}));
}

std::string refusal(const std::string& bytes) {
  TempFolder folder;
  write_text(folder.file("m.gguf"), bytes);
  try {
    GgufFiles::open(folder.file("m.gguf"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_refusal(const std::string& bytes, const char* part) {
  EXPECT_NE(refusal(bytes).find(part), std::string::npos) << refusal(bytes);
}

TEST(Gguf, RefusesValuesOfTheWrongKind) {
  const auto files = GgufFiles::open(golden());
  EXPECT_THROW(files.integer("test.text", 0, 9), Error);
  EXPECT_THROW(files.integer("test.u8", 0, 9), Error);
  EXPECT_THROW(files.integer("test.numbers", 0, 9), Error);
  EXPECT_THROW(files.text("test.u8"), Error);
  EXPECT_THROW(files.texts("test.text"), Error);
  EXPECT_THROW(files.number("test.f64", 0, 1), Error);
  EXPECT_THROW(files.at("test.none"), Error);
}

// Every cut of a good file is refused, and no changed byte of its header is worse than that.
TEST(Gguf, TrustsNothing) {
  const std::string good = read_text(golden());
  EXPECT_EQ(refusal(good), "");
  for (size_t n = 0; n + 1 < good.size(); n += 1 + n / 40) {
    EXPECT_NE(refusal(good.substr(0, n)), "") << n;
  }
  for (size_t at = 0; at < 700; at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0xff);
    refusal(bad);
  }
}

std::string u32(uint32_t n) { return {reinterpret_cast<const char*>(&n), 4}; }
std::string u64(uint64_t n) { return {reinterpret_cast<const char*>(&n), 8}; }
std::string text(const std::string& s) { return u64(s.size()) + s; }
std::string head(uint64_t tensors, uint64_t pairs) {
  return "GGUF" + u32(3) + u64(tensors) + u64(pairs);
}
std::string tensor(const std::string& name, uint64_t width, uint32_t type, uint64_t offset) {
  return text(name) + u32(1) + u64(width) + u32(type) + u64(offset);
}
std::string padded(std::string s, size_t data) {
  s.append((32 - s.size() % 32) % 32 + data, '\0');
  return s;
}

TEST(Gguf, NamesWhatIsWrong) {
  expect_refusal("", "no GGUF");
  expect_refusal("GGUF" + u32(2) + u64(0) + u64(0), "version 2");
  expect_refusal("GGUF" + u32(3u << 24) + u64(0) + u64(0), "big-endian");
  expect_refusal(head(0, 1) + u64(uint64_t{1} << 60), "needs");
  expect_refusal(head(0, 1) + text("k") + u32(77), "'k' has the unknown type 77");
  expect_refusal(head(0, 1) + text("k") + u32(9) + u32(4) + u64(uint64_t{1} << 62), "items");
  expect_refusal(head(0, 2) + text("k") + u32(4) + u32(1) + text("k") + u32(4) + u32(1), "twice");
  expect_refusal(padded(head(1, 0) + tensor("t", 256, 16, 0), 512), "IQ2_XXS");
  expect_refusal(padded(head(1, 0) + tensor("t", 33, 8, 0), 512), "multiple of 32");
  expect_refusal(padded(head(1, 0) + tensor("t", 8, 0, 8), 512), "not aligned");
  expect_refusal(padded(head(1, 0) + tensor("t", 32, 0, 0), 127), "cut short");
  expect_refusal(padded(head(2, 0) + tensor("t", 16, 0, 0) + tensor("u", 8, 0, 32), 128),
                 "overlaps");
  expect_refusal(padded(head(1, 0) + tensor("t", 0, 0, 0), 32), "no elements");
}

TEST(Gguf, SplitFiles) {
  TempFolder folder;
  const auto part = [&](int index, const std::string& pairs, uint64_t n_pairs, const char* name) {
    char file[64];
    std::snprintf(file, sizeof(file), "m-%05d-of-00002.gguf", index);
    std::string bytes = padded(head(1, n_pairs) + pairs + tensor(name, 8, 0, 0), 32);
    bytes[bytes.size() - 29] = static_cast<char>(0x3f);  // the first float: 0x3f000000
    write_text(folder.file(file), bytes);
  };
  const std::string count = text("split.count") + u32(2) + std::string("\2\0", 2);
  part(1, count + text("general.name") + u32(8) + text("whole"), 2, "a");
  part(2, count, 1, "b");
  for (const char* opened : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    const auto files = GgufFiles::open(folder.file(opened));
    EXPECT_EQ(files.text("general.name"), "whole");
    EXPECT_EQ(values(files.at("a"))[0], 0.5f);
    EXPECT_EQ(values(files.at("b"))[0], 0.5f);
  }
  part(2, count, 1, "a");
  EXPECT_THROW(GgufFiles::open(folder.file("m-00001-of-00002.gguf")), Error);
  std::filesystem::remove(folder.file("m-00002-of-00002.gguf"));
  EXPECT_THROW(GgufFiles::open(folder.file("m-00001-of-00002.gguf")), Error);
}

}  // namespace
}  // namespace replayssm
