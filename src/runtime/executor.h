// Carries out step plans on the memory of one model. It decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "runtime/backend.h"
#include "runtime/mtp_drafts.h"
#include "runtime/packed_windows.h"
#include "runtime/step_plan.h"
#include "runtime/traffic.h"

namespace replayssm {

class Checksum;

// Any action but kEvict.
void act(Backend& backend, const Action& action);

class Executor {
 public:
  // The model must outlive it, memory is its on the device; sizes.snapshots is taken as set.
  Executor(const Model& model, const ModelMemory& memory, const Device& device, PoolSizes sizes,
           const ForwardLimits& limits);

  void act(const Action& action) { replayssm::act(*backend_, action); }

  // Starts one pass over the rows; tokens[i] are the ids of row i's window. Logits come in the
  // order of the rows: every token's for all_logits rows and for steps, the last's for sweeps that
  // end their sequence. draws: a row each of these, or none. Backend::launch() says what may
  // overlap.
  void launch(std::span<const StepRow> rows, std::span<const std::vector<int32_t>> tokens,
              std::span<const DrawRow> draws);
  PassResult wait() { return backend_->wait(); }
  // Drafts of the model's own head, between two passes.
  void draft(ops::Sampler& sampler, std::span<MtpJob> jobs) {
    draft_by_mtp(*backend_, sampler, model_.spec().vocab, jobs);
  }
  bool overlaps() const { return backend_->overlaps(); }
  bool draws() const { return backend_->draws(); }
  // Logit rows that run() gives for a row with so many tokens.
  static int64_t n_logits(const StepRow& row, int64_t n_tokens);

  // The state after a text, as bytes: a checkpoint with its conv rows, and pages. The same state
  // has the same size, whatever the bytes.
  int64_t snapshot_bytes(int64_t n_pages) const;
  void read_snapshot(int32_t slot, std::span<const int32_t> pages, std::span<std::byte> out) const;
  void write_snapshot(int32_t slot, std::span<const int32_t> pages,
                      std::span<const std::byte> bytes);

  // XXH3 over what a text's state is: the checkpoint at g(n), ring rows [g(n), n), conv rows
  // [n - w + 1, n), and k and v of [0, n): the model's own, not its drafting head's. A checkpoint
  // that lags is folded to `spare_slot`; the text stays as it is.
  uint64_t state_hash(const SequenceState& state, std::span<const int32_t> pages,
                      int32_t spare_slot);

  // Into `sum`, a piece at a time.
  void add_embedding(Checksum& sum) const;

  const StateTraffic& traffic() const { return traffic_; }
  // All that it holds.
  int64_t bytes() const { return backend_->state_bytes() + backend_->scratch_bytes(); }

 private:
  const Model& model_;
  ModelMemory memory_;
  std::unique_ptr<Backend> backend_;
  StateTraffic traffic_;
  PackedWindows windows_;
};

}  // namespace replayssm
