// The baseline on the CPU: the state itself, read and written for every token, with a snapshot a
// token in a window of several, so that any of them can be the last accepted one. A Device like the
// product's, so that Runner and generate() run on it unchanged; only the recurrence differs.
//
// It learns what was accepted from the rows: a window that starts at n says how many tokens of the
// one before were committed. A lone token's state goes back where it came from and cannot be
// undone.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace replayssm::bench {

// The context must outlive the device and what it makes. Checkpoints of int8 are refused.
std::unique_ptr<Device> plain_device(const ops::Context& context);

}  // namespace replayssm::bench
