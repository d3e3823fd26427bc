// Shared by the model tests: temporary folders, files, and what a refusal must say.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>

#include "core/error.h"

namespace replayssm {

inline std::string fixture(const std::string& name) {
  return std::string(REPLAYSSM_SOURCE_DIR) + "/tests/data/models/" + name;
}

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    path_ = (std::filesystem::temp_directory_path() /
             concat("replayssm_model_test_", getpid(), "_", count.fetch_add(1)))
                .string();
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Copies every file of a fixture.
  void copy_fixture(const std::string& name) const { std::filesystem::copy(fixture(name), path_); }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<int64_t>(text.size()));
}

// The bytes of a safetensors file with this header and `data_bytes` zeros.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  return out + header + std::string(data_bytes, '\0');
}

// Replaces the one place where `from` stands.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "no '" << from << "' in the text";
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// Runs body, which must throw Error, one line that holds every part.
template <typename Body>
void expect_refusal(std::initializer_list<std::string> parts, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    for (const auto& part : parts) {
      EXPECT_NE(what.find(part), std::string::npos) << "'" << part << "' is not in: " << what;
    }
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return;
  }
  ADD_FAILURE() << "was accepted";
}

}  // namespace replayssm
