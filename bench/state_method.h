// How recurrent layers keep their state: by replay, or by one of the methods that it is measured
// against, which keep the state itself.
#pragma once

#include <cstdint>

namespace replayssm {

enum class StateMethod : int32_t { kReplay, kPlain, kSnapshots, kActivationReplay, kJointAdvance };

constexpr const char* state_method_name(StateMethod method) {
  switch (method) {
    case StateMethod::kReplay:
      return "replay";
    case StateMethod::kPlain:
      return "plain";
    case StateMethod::kSnapshots:
      return "snapshots";
    case StateMethod::kActivationReplay:
      return "activation_replay";
    case StateMethod::kJointAdvance:
      return "joint_advance";
  }
  return "?";
}

}  // namespace replayssm
