// Errors from outside: bad files, bad flags, bad requests. One line that names the file, field or
// flag and says what to do. A programmer's mistake is REPLAYSSM_CHECK; "can't do this" is a reason.
#pragma once

#include <stdexcept>
#include <string>

namespace replayssm {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Concatenates the parts and throws Error.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts);

// Prints "file:line: check failed: condition (values)" and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);

namespace detail {
inline std::string to_text(const std::string& s) { return s; }
inline std::string to_text(const char* s) { return s; }
inline std::string to_text(char c) { return std::string(1, c); }
template <typename T>
std::string to_text(const T& value) {
  if constexpr (std::is_constructible_v<std::string, const T&>) {
    return std::string(value);
  } else {
    return std::to_string(value);
  }
}
}  // namespace detail

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  ((out += detail::to_text(parts)), ...);
  return out;
}

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

}  // namespace replayssm

#define REPLAYSSM_CHECK(condition, ...)                                                            \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::replayssm::check_failed(__FILE__, __LINE__, #condition, ::replayssm::concat(__VA_ARGS__)); \
  } while (false)
