#include "core/text_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "core/error.h"

namespace replayssm {

std::string read_text_file(const std::string& path, size_t most_bytes) {
  // A directory opens as a file does and fails later.
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail(path, ": is a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, ": cannot open");
  std::string text;
  std::vector<char> block(size_t{1} << 20);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > most_bytes) fail(path, ": more than the ", most_bytes, " bytes allowed");
  }
  if (in.bad()) fail(path, ": cannot read");
  return text;
}

}  // namespace replayssm
