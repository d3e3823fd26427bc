// Values as models write them in calls: JSON, and what is near it.
#pragma once

#include <string_view>

#include "core/json.h"

namespace replayssm::server {

// What is known of the text behind the one at hand.
enum class TextEnd {
  kMore,   // more may come
  kEnded,  // the model ended its answer
  kCut,    // it was not at an end: max_tokens, a stop string
};

struct LooseValue {
  enum class State {
    kOpen,   // more text is needed to tell
    kValue,  // `value` takes the first `length` bytes
    kBad,    // no value
  };
  State state = State::kBad;
  Json value;
  size_t length = 0;
};

// The value with which `text` begins, blanks aside. Beside JSON: single quotes, Python's True,
// False and None, control characters and unknown escapes in strings, a comma before a closing
// bracket. Brackets that are open before a '<', or where the model ended its answer, are closed.
LooseValue read_loose(std::string_view text, TextEnd end);

}  // namespace replayssm::server
