// Stop strings over a text that comes in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace replayssm::server {

// The text ends before the stop string that is complete first (of those complete at the same byte,
// the longest). What comes out does not depend on how the text is cut into pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that is certain to stand before any stop string; what may be the start of one is held
  // back. After a stop: nothing more.
  std::string push(std::string_view text);
  // The end of the text: what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }
  // The stop string that ended the text; empty before.
  const std::string& found() const { return found_; }

 private:
  size_t held_prefix() const;

  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace replayssm::server
