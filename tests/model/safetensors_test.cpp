// The safetensors reader against files that are right, cut, forged and mislabelled.
#include "model/safetensors.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "testing.h"

namespace replayssm {
namespace {

std::vector<TensorView> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "model.safetensors");
}

void expect_refused(const std::string& bytes, std::initializer_list<std::string> parts) {
  expect_refusal({"model.safetensors"}, [&] { parse(bytes); });
  expect_refusal(parts, [&] { parse(bytes); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

TEST(Safetensors, ReadsWhatItWrites) {
  const TempFolder folder;
  const std::vector<float> floats = {1.5f, -2.0f, 3.25f, 0.0f, -0.0f, 7.0f};
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7c00};
  const std::vector<int64_t> integers = {-1, 1LL << 40};
  const TensorToWrite tensors[] = {
      {"w", FileDType::kF32, {2, 3}, floats.data()},
      {"h", FileDType::kF16, {4}, halves.data()},
      {"b", FileDType::kBF16, {2, 2}, halves.data()},
      {"i", FileDType::kI64, {2}, integers.data()},
      {"none", FileDType::kF32, {0, 5}, nullptr},
      {"scalar", FileDType::kF32, {}, floats.data()},
  };
  const std::string path = folder.file("a.safetensors");
  write_safetensors(path, tensors);
  const TensorFiles files = TensorFiles::open_file(path);
  EXPECT_EQ(files.tensors().size(), 6u);
  EXPECT_EQ(files.at("w").shape_text(), "[2, 3]");
  EXPECT_EQ(read_fp32(files.at("w")), floats);
  EXPECT_EQ(read_fp32(files.at("h")), (std::vector<float>{1.0f, -2.0f, 0x1p-24f, INFINITY}));
  EXPECT_EQ(read_fp32(files.at("b"))[0], 0.0078125f);
  EXPECT_EQ(read_int64(files.at("i")), integers);
  EXPECT_EQ(files.at("none").n_elements(), 0);
  EXPECT_EQ(read_fp32(files.at("scalar")), std::vector<float>{1.5f});
  EXPECT_EQ(files.find("absent"), nullptr);
  expect_refusal({path, "'absent'"}, [&] { files.at("absent"); });
  expect_refusal({path, "'i'", "I64"}, [&] { read_fp32(files.at("i")); });
}

TEST(Safetensors, WidensEveryHalfExactly) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  TensorView view;
  view.dtype = FileDType::kF16;
  view.data = reinterpret_cast<const std::byte*>(all.data());
  view.bytes = 2 * 65536;
  const auto floats = read_fp32(view);
  for (size_t i = 0; i < all.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    const double sign = i >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(floats[i]), mantissa != 0);
      if (mantissa == 0) {
        EXPECT_EQ(floats[i], sign * INFINITY);
      }
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(floats[i], sign * value) << i;
      ASSERT_EQ(std::signbit(floats[i]), sign < 0) << i;
    }
  }
}

TEST(Safetensors, AcceptsMetadataPaddingAndAnyOrder) {
  const auto tensors = parse(safetensors_bytes("{\"__metadata__\":{\"format\":\"pt\"}," +
                                                   entry("b", "F32", "1", "4,8") + "," +
                                                   entry("a", "F32", "1", "0,4") + "}   ",
                                               8));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(parse(safetensors_bytes("{}", 0)).size(), 0u);
}

TEST(Safetensors, RefusesCutFiles) {
  const std::string whole = safetensors_bytes(
      "{" + entry("a", "F32", "2,4", "0,32") + "," + entry("last", "F32", "2", "32,40") + "}", 40);
  EXPECT_EQ(parse(whole).size(), 2u);
  expect_refused(whole.substr(0, whole.size() - 1), {"'last'", "cut short"});
  expect_refused(whole.substr(0, whole.size() / 2), {"cut short"});
  // every other length
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_refusal({"model.safetensors"}, [&] { parse(whole.substr(0, size)); });
  }
  expect_refused(whole + "x", {"1 bytes follow", "'last'"});
}

TEST(Safetensors, RefusesLfsPointers) {
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
                 {"Git LFS pointer", "git lfs pull"});
}

TEST(Safetensors, RefusesImpossibleHeaderSizes) {
  std::string bytes = safetensors_bytes("{}", 0);
  for (const uint64_t size : {uint64_t{3}, uint64_t{100} << 20, (uint64_t{100} << 20) + 1,
                              UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 63}) {
    std::memcpy(bytes.data(), &size, 8);
    expect_refused(bytes, {"header"});
  }
}

TEST(Safetensors, RefusesBadRanges) {
  const auto two = [](const std::string& a, const std::string& b, size_t bytes) {
    return safetensors_bytes(
        "{" + entry("one", "F32", "2", a) + "," + entry("two", "F32", "2", b) + "}", bytes);
  };
  expect_refused(two("0,8", "4,12", 12), {"'two'", "overlaps"});
  expect_refused(two("0,8", "0,8", 8), {"overlaps"});
  expect_refused(two("0,8", "12,20", 20), {"'two'", "gap"});
  expect_refused(two("4,12", "12,20", 20), {"'one'", "gap"});
  expect_refused(two("0,8", "8,16", 12), {"'two'", "[8, 16)", "12 bytes"});
  expect_refused(two("8,0", "8,16", 16), {"'one'", "[8, 0)"});
  expect_refused(two("0,8", "18446744073709551608,18446744073709551615", 16), {"'two'"});
  expect_refused(two("0,8", "8,18446744073709551616", 16), {"'two'"});
  expect_refused(two("0,8", "-8,16", 16), {"negative", "'two'"});
  expect_refused(two("0,8", "8.0,16", 16), {"'two'"});
  expect_refused(two("0,8", "8", 16), {"'two'", "two numbers"});
  expect_refused(two("0,8", "8,16,24", 16), {"'two'", "two numbers"});
}

TEST(Safetensors, RefusesShapesThatDoNotFit) {
  const auto one = [](const std::string& dtype, const std::string& shape) {
    return safetensors_bytes("{" + entry("w", dtype, shape, "0,16") + "}", 16);
  };
  EXPECT_EQ(parse(one("F32", "2,2")).size(), 1u);
  expect_refused(one("F32", "2,3"), {"'w'", "[2, 3]", "24", "16"});
  expect_refused(one("F16", "2,2"), {"'w'", "F16"});
  expect_refused(one("F12", "2,2"), {"'w'", "F12"});
  expect_refused(one("F32", "4294967296,4294967296"), {"'w'", "overflow"});
  expect_refused(one("F32", "18446744073709551615,1"), {"'w'", "overflow"});
  expect_refused(one("F32", "9223372036854775807,2,0"), {"'w'"});
  expect_refused(one("F32", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4"), {"'w'", "16 numbers"});
}

TEST(Safetensors, RefusesBadHeaders) {
  const auto header = [](const std::string& text) { return safetensors_bytes(text, 4); };
  const std::string good = entry("w", "F32", "1", "0,4");
  expect_refused(header("{" + good + "," + good + "}"), {"'w'", "twice"});
  expect_refused(header("{" + good), {"no JSON"});
  expect_refused(header("[" + good + "]"), {"a list"});
  expect_refused(header("null"), {"null"});
  expect_refused(header("{\"w\":3}"), {"a number", "'w'"});
  expect_refused(header("{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}"), {"'w'", "data_offsets"});
  expect_refused(header("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}"), {"'w'", "shape"});
  expect_refused(header("{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}"), {"'w'", "dtype"});
  expect_refused(header("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), {"'w'", "two fields"});
  expect_refused(header("{\"w\":{\"more\":1}}"), {"'w'", "'more'"});
  expect_refused(header("{\"w\":{\"dtype\":1}}"), {"'w'", "a number"});
  expect_refused(header("{\"w\":{\"shape\":{}}}"), {"'w'", "an object"});
  expect_refused(header("{\"w\":{\"shape\":[[1]]}}"), {"'w'", "a list"});
  expect_refused(header("{\"w\\n\":{\"shape\":[\"1\"]}}"), {"'w?'", "a string"});
  expect_refused(header(std::string(100000, '[')), {"a list"});
  expect_refused(header("{\"__metadata__\":{\"a\":{}}}"), {"an object"});
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    const float value = 1.0f;
    const TensorToWrite one[] = {{"one", FileDType::kF32, {1}, &value}};
    const TensorToWrite two[] = {{"two", FileDType::kF32, {1}, &value}};
    write_safetensors(folder_.file("s1.safetensors"), one);
    write_safetensors(folder_.file("s2.safetensors"), two);
    index(R"({"one":"s1.safetensors","two":"s2.safetensors"})");
  }
  void index(const std::string& map) {
    write_text(folder_.file("model.safetensors.index.json"), "{\"weight_map\":" + map + "}");
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    expect_refusal(parts, [&] { TensorFiles::open_folder(folder_.path()); });
  }
  TempFolder folder_;
};

TEST_F(Shards, Open) { EXPECT_EQ(TensorFiles::open_folder(folder_.path()).tensors().size(), 2u); }

TEST_F(Shards, RefusesMissingShard) {
  std::filesystem::remove(folder_.file("s2.safetensors"));
  expect_refused({"s2.safetensors", "missing", "'two'"});
}

TEST_F(Shards, RefusesWrongIndex) {
  index(R"({"one":"s1.safetensors","two":"s1.safetensors"})");
  expect_refused({"s1.safetensors", "no tensor 'two'"});
  index(R"({"one":"s1.safetensors","two":"s2.safetensors","three":"s2.safetensors"})");
  expect_refused({"s2.safetensors", "no tensor 'three'"});
  index(R"({"one":"s1.safetensors"})");
  EXPECT_EQ(TensorFiles::open_folder(folder_.path()).tensors().size(), 1u);
  index(R"({"one":"../s1.safetensors"})");
  expect_refused({"'one'", "'../s1.safetensors'"});
  index(R"({"one":7})");
  expect_refused({"index.json", "'one'"});
  index("[]");
  expect_refused({"index.json", "weight_map"});
  write_text(folder_.file("model.safetensors.index.json"), "[]");
  expect_refused({"index.json", "object"});
  write_text(folder_.file("model.safetensors.index.json"), "{");
  expect_refused({"index.json"});
  write_text(folder_.file("model.safetensors.index.json"), "");
  expect_refused({"index.json"});
  write_text(folder_.file("model.safetensors.index.json"),
             "version https://git-lfs.github.com/spec/v1\n");
  expect_refused({"index.json", "Git LFS"});
  std::filesystem::resize_file(folder_.file("model.safetensors.index.json"), size_t{65} << 20);
  expect_refused({"index.json", "more than"});
}

TEST_F(Shards, RefusesTensorsThatTheIndexHidesOrDoubles) {
  const float value = 1.0f;
  const TensorToWrite again[] = {{"two", FileDType::kF32, {1}, &value},
                                 {"one", FileDType::kF32, {1}, &value}};
  write_safetensors(folder_.file("s2.safetensors"), again);
  expect_refused({"'one'", "s1.safetensors", "s2.safetensors"});
}

// Tools leave indexes as they were: what counts is that every tensor that they name is there.
TEST_F(Shards, StaleIndexes) {
  const float value = 1;
  const TensorToWrite more[] = {{"two", FileDType::kF32, {1}, &value},
                                {"hidden", FileDType::kF32, {1}, &value}};
  write_safetensors(folder_.file("s2.safetensors"), more);
  EXPECT_EQ(TensorFiles::open_folder(folder_.path()).tensors().size(), 3u);
  index(R"({"one":"s2.safetensors","two":"s1.safetensors"})");
  EXPECT_EQ(TensorFiles::open_folder(folder_.path()).tensors().size(), 3u);
  const TensorToWrite all[] = {{"merged", FileDType::kF32, {1}, &value}};
  write_safetensors(folder_.file("model.safetensors"), all);
  index(R"({"merged":"gone-1.safetensors"})");
  EXPECT_NE(TensorFiles::open_folder(folder_.path()).find("merged"), nullptr);
}

TEST(FolderWithoutIndex, OneFileOrOneWholeSet) {
  const float value = 1;
  const auto write = [&](const TempFolder& folder, const std::string& file) {
    const TensorToWrite list[] = {{"in " + file, FileDType::kF32, {1}, &value}};
    write_safetensors(folder.file(file), list);
  };
  for (const char* name : {"pytorch_model.safetensors", "model-00001-of-00001.safetensors"}) {
    const TempFolder folder;
    EXPECT_FALSE(TensorFiles::in_folder(folder.path()));
    write(folder, name);
    write(folder, "adapter_model.safetensors");
    write(folder, "consolidated.safetensors");
    EXPECT_TRUE(TensorFiles::in_folder(folder.path()));
    EXPECT_EQ(TensorFiles::open_folder(folder.path()).tensors().size(), 1u) << name;
  }
  const TempFolder folder;
  write(folder, "model-00001-of-00003.safetensors");
  write(folder, "model-00003-of-00003.safetensors");
  expect_refusal({folder.path(), "2 of the 3 files model-"},
                 [&] { TensorFiles::open_folder(folder.path()); });
  write(folder, "model-00002-of-00003.safetensors");
  EXPECT_EQ(TensorFiles::open_folder(folder.path()).tensors().size(), 3u);
  write(folder, "other.safetensors");
  expect_refusal({folder.path(), "several files", "'other.safetensors'"},
                 [&] { TensorFiles::open_folder(folder.path()); });
  write(folder, "model.safetensors");
  EXPECT_EQ(TensorFiles::open_folder(folder.path()).tensors().size(), 1u);
}

TEST_F(Shards, RefusesFoldersWithoutWeights) {
  std::filesystem::remove(folder_.file("model.safetensors.index.json"));
  expect_refused({folder_.path(), "model.safetensors"});
  std::filesystem::create_directory(folder_.file("model.safetensors"));
  expect_refused({"model.safetensors", "regular"});
}

}  // namespace
}  // namespace replayssm
