// Carries out step plans on the memory of one model. It decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "runtime/step_plan.h"
#include "runtime/traffic.h"

namespace replayssm {

class Executor {
 public:
  // Model and context must outlive it.
  Executor(const Model& model, const ops::Context& context, const PoolSizes& sizes,
           const ForwardLimits& limits);

  // Bytes of the conv rows that stand beside one checkpoint slot.
  static int64_t conv_rows_bytes(const Model& model);

  // Any action but kEvict.
  void act(const Action& action);

  // One pass over the rows; tokens[i] are the ids of row i's window. Logits come in the order of
  // the rows, valid until the next pass: every token's for all_logits rows and for steps, the
  // last's for sweeps that end their text.
  const float* run(std::span<const StepRow> rows, std::span<const std::vector<int32_t>> tokens);
  // Logit rows that run() gives for a row with so many tokens.
  static int64_t n_logits(const StepRow& row, int64_t n_tokens);

  // The state after a text, as bytes: a checkpoint with its conv rows, and pages. The same state
  // has the same size, whatever the bytes.
  int64_t snapshot_bytes(int64_t n_pages) const;
  void read_snapshot(int32_t slot, std::span<const int32_t> pages, std::span<std::byte> out) const;
  void write_snapshot(int32_t slot, std::span<const int32_t> pages,
                      std::span<const std::byte> bytes);

  // XXH3 over what a text's state is: the checkpoint at g(n), ring rows [g(n), n), conv rows
  // [n - w + 1, n), and k and v of [0, n). A checkpoint that lags is folded to `spare_slot`; the
  // text stays as it is.
  uint64_t state_hash(const SequenceState& state, std::span<const int32_t> pages,
                      int32_t spare_slot);

  const StateTraffic& traffic() const { return traffic_; }
  // All that it holds.
  int64_t bytes() const;

 private:
  void copy_conv(int32_t ring_slot, int32_t slot, int64_t position, bool save);

  const Model& model_;
  ModelMemory memory_;
  StatePool pool_;
  Forward forward_;
  Buffer conv_;  // [checkpoint_slots, conv_rows_bytes]
  std::vector<float> logits_;
  StateTraffic traffic_;

  std::vector<ForwardRow> rows_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> logit_tokens_;
};

}  // namespace replayssm
