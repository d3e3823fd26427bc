// What --help of a program or a verb prints.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace replayssm {

// The text documents these flags, --help and no others.
inline void expect_documented(const std::string& help, const std::vector<std::string>& names) {
  // Every entry has words beside its name and type, on its line or the next.
  std::istringstream lines(help);
  std::map<std::string, std::string> entries;
  std::string line, entry;
  while (std::getline(lines, line)) {
    if (line.size() > 2 && line[0] == ' ' && line[2] != ' ') {
      std::istringstream words(line);
      words >> entry;
      const size_t comma = entry.find(",--");
      if (comma != std::string::npos) entry = entry.substr(comma + 1);
      std::string rest;
      std::getline(words, rest);
      entries[entry] = rest;
    } else if (!entry.empty()) {
      entries[entry] += line;
    }
  }
  for (const auto& name : names) {
    ASSERT_TRUE(entries.contains(name)) << name << "\n" << help;
    // After the type, the default and REQUIRED: small letters, so words.
    std::string text = entries[name];
    for (const char* noise : {"TEXT", "REQUIRED", "UINT", "INT", "FLOAT", "..."}) {
      for (size_t at; (at = text.find(noise)) != std::string::npos;) {
        text.erase(at, std::string(noise).size());
      }
    }
    text.erase(0, text.find_first_not_of(' '));
    if (text.starts_with("[")) text.erase(0, text.find(']') + 1);
    const auto letters =
        std::count_if(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    EXPECT_GE(letters, 3) << name << ": " << entries[name];
  }
  EXPECT_EQ(entries.size(), names.size() + 1) << "a flag is not in this list\n" << help;
}

}  // namespace replayssm
