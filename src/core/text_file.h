// Small files from outside: what they hold, or one line that names the file.
#pragma once

#include <cstddef>
#include <string>

namespace replayssm {

// Throws Error if the file cannot be read or holds more than `most_bytes`.
std::string read_text_file(const std::string& path, size_t most_bytes = size_t{64} << 20);

}  // namespace replayssm
