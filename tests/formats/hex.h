// Bytes written as in documents of formats: "21 43 65".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace replayssm {

inline std::vector<std::byte> hex(std::string_view text) {
  std::vector<std::byte> out;
  std::string digits;
  for (const char c : text) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() < 2) continue;
    out.push_back(static_cast<std::byte>(std::stoi(digits, nullptr, 16)));
    digits.clear();
  }
  return out;
}

inline std::vector<std::byte> times(int n, std::string_view text) {
  const std::vector<std::byte> one = hex(text);
  std::vector<std::byte> out;
  for (int i = 0; i < n; ++i) out.insert(out.end(), one.begin(), one.end());
  return out;
}

inline std::vector<std::byte> join(const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> out;
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace replayssm
