// Drives a Forward by hand, as the runtime would: sequences, slots, pages, commits.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "model/cpu/forward_cpu.h"
#include "model/cpu/weights_cpu.h"

namespace replayssm {

// What a load of the folder takes; the weights' memory is gone.
inline LoadedWeightsCpu weights_of(const std::string& folder) {
  HostArena memory;
  return load_weights_cpu(*Model::load(folder, {}), memory);
}

struct Sequence {
  SequenceState state;
  std::vector<int32_t> pages;
};

// One window of a pass.
struct Window {
  Sequence* sequence = nullptr;
  std::vector<int32_t> tokens;
  Phase phase = Phase::kStep;
  int64_t advance = -1;     // tokens that stand; -1: all
  int32_t write_slot = -1;  // where a fold goes; -1: the sequence's own
};

class Engine {
 public:
  static constexpr int32_t kSlots = 8;
  static constexpr int32_t kPages = 64;

  Engine(const std::string& folder, const ModelOptions& options, bool bf16_dot = false,
         int n_threads = 1, Isa isa = best_isa())
      : pool_(n_threads),
        context_(pool_, isa, bf16_dot),
        model_(Model::load(folder, options)),
        layers_(plan_layers_cpu(*model_, isa)),
        state_(take_pool(layers_.sizes, {kSlots, kSlots, kPages}, memory_)),
        loaded_(load_weights_cpu(*model_, memory_)),
        forward_(*model_, layers_, loaded_.weights, context_,
                 {.max_tokens = 256, .max_rows = 16, .max_logits = 256}, memory_) {
    const StateParts& parts = state_.parts;
    for (int32_t i = 0; i < kSlots; ++i) {
      fill_with_nan(parts.checkpoint(i));
      fill_with_nan(parts.ring(i));
    }
    for (int32_t i = 0; i < kPages; ++i) fill_with_nan(parts.page(i));
  }

  const Model& model() const { return *model_; }
  StatePool& state() { return state_; }
  ForwardCpu& forward() { return forward_; }

  // A sequence in slot `slot` with 8 pages, handed out in a scattered order.
  Sequence sequence(int32_t slot) const {
    Sequence out;
    out.state.checkpoint_slot = slot;
    out.state.ring_slot = kSlots - 1 - slot;
    for (int32_t i = 0; i < 8; ++i) out.pages.push_back((slot + kSlots * (7 - i)) % kPages);
    return out;
  }

  // Runs one pass; logits of every token, window by window. Commits.
  std::vector<float> run(const std::vector<Window>& windows) {
    std::vector<ForwardRow> rows;
    std::vector<int32_t> tokens;
    for (const auto& window : windows) {
      const SequenceState& s = window.sequence->state;
      ForwardRow row;
      row.row = {s.n,
                 s.c,
                 s.n,
                 static_cast<int32_t>(window.tokens.size()),
                 static_cast<int64_t>(tokens.size()),
                 s.checkpoint_slot,
                 window.write_slot < 0 ? s.checkpoint_slot : window.write_slot,
                 s.ring_slot};
      row.phase = window.phase;
      row.pages = window.sequence->pages.data();
      rows.push_back(row);
      tokens.insert(tokens.end(), window.tokens.begin(), window.tokens.end());
    }
    std::vector<int64_t> all(tokens.size());
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> logits = pass({rows, tokens, all});
    for (size_t i = 0; i < windows.size(); ++i) {
      SequenceState& s = windows[i].sequence->state;
      if (windows[i].phase == Phase::kSweep) {
        EXPECT_EQ(commit_sweep(model_->grid(), rows[i].row, s), Status::kOk);
      } else {
        const int64_t advance = windows[i].advance < 0 ? rows[i].row.n_tokens : windows[i].advance;
        EXPECT_EQ(commit_step(model_->grid(), rows[i].row, advance, s), Status::kOk);
      }
    }
    return logits;
  }

  // One pass that commits nothing.
  std::vector<float> pass(const ForwardBatch& batch) {
    forward_.run(batch, state_);
    const auto n = static_cast<int64_t>(batch.logit_tokens.size()) * model_->spec().vocab;
    return {forward_.logits(), forward_.logits() + n};
  }

  // One pass of the drafting head: logits, row by row.
  std::vector<float> draft(const std::vector<DraftRow>& rows) {
    forward_.draft(rows, state_);
    return {forward_.logits(), forward_.logits() + std::ssize(rows) * model_->spec().vocab};
  }

  // All logits of a fresh sequence: `prefill` tokens in one sweep, the rest in steps of `window`.
  std::vector<float> logits(const std::vector<int32_t>& ids, size_t prefill, size_t window,
                            int32_t slot = 0) {
    Sequence sequence = this->sequence(slot);
    std::vector<float> out;
    for (size_t at = 0; at < ids.size();) {
      const bool sweep = at < prefill;
      const size_t end = std::min(ids.size(), sweep ? prefill : at + window);
      const auto part =
          run({{&sequence,
                {ids.begin() + static_cast<int64_t>(at), ids.begin() + static_cast<int64_t>(end)},
                sweep ? Phase::kSweep : Phase::kStep}});
      out.insert(out.end(), part.begin(), part.end());
      at = end;
    }
    return out;
  }

 private:
  ThreadPool pool_;
  ops::Context context_;
  std::shared_ptr<const Model> model_;
  CpuLayers layers_;
  HostArena memory_;
  StatePool state_;
  LoadedWeightsCpu loaded_;
  ForwardCpu forward_;
};

}  // namespace replayssm
