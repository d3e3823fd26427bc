// How recurrent layers keep their state: by replay, or by one of the ways that it is measured
// against, which keep the state itself (replay/cuda/baselines).
#pragma once

#include <cstdint>

namespace replayssm {

enum class StateWay : int32_t { kReplay, kPlain, kSnapshots, kActivationReplay, kJointAdvance };

constexpr const char* state_way_name(StateWay way) {
  switch (way) {
    case StateWay::kReplay:
      return "replay";
    case StateWay::kPlain:
      return "plain";
    case StateWay::kSnapshots:
      return "snapshots";
    case StateWay::kActivationReplay:
      return "activation_replay";
    case StateWay::kJointAdvance:
      return "joint_advance";
  }
  return "?";
}

}  // namespace replayssm
