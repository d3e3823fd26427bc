// Any bytes as a stream of events: the same events however it is cut, and what was put in comes
// out.
#include <cstdlib>

#include "core/error.h"
#include "server/http/sse.h"

using namespace replayssm::server;

namespace {

constexpr size_t kMaxBytes = 256;

// The events, and whether it was refused.
std::vector<std::string> parse(std::string_view text, size_t step, bool* refused) {
  SseParser parser(kMaxBytes);
  std::vector<std::string> events;
  try {
    for (; !text.empty(); text.remove_prefix(std::min(step, text.size()))) {
      for (auto& event : parser.push(text.substr(0, step))) events.push_back(std::move(event));
    }
  } catch (const replayssm::Error&) {
    *refused = true;
  }
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t step = 1 + data[0] % 16;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  bool cut_refused = false, whole_refused = false;
  const auto cut = parse(text, step, &cut_refused);
  const auto whole = parse(text, text.size() + 1, &whole_refused);
  // A piece that is refused gives none of its events.
  if (cut_refused != whole_refused) std::abort();
  if (!whole_refused && cut != whole) std::abort();
  for (const std::string& event : cut) {
    if (event.size() > kMaxBytes || event.find('\r') != std::string::npos) std::abort();
  }
  std::string sent, line;
  for (const char c : text.substr(0, 64)) line += c == '\n' || c == '\r' ? ' ' : c;
  sent = "data: " + line + "\n\n";
  bool refused = false;
  const auto got = parse(sent, step, &refused);
  if (refused || got != std::vector<std::string>{line}) std::abort();
  return 0;
}
