// The sequences of one model without a scheduler, and the passes over their windows.
//
// One owner moves n: a window's tokens are pending until advance() says how many are committed; the
// others are written over by the next window. A fold of a pass is kept in any case
// (docs/contract.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/model.h"
#include "ops/context.h"
#include "ops/sample.h"
#include "runtime/backend.h"
#include "runtime/packed_windows.h"
#include "runtime/sequence_memory.h"
#include "runtime/traffic.h"

namespace replayssm {

struct RunnerLimits {
  int32_t max_sequences = 1;
  int64_t max_positions = 2048;  // of one sequence
  int64_t max_tokens = 256;      // packed tokens of one pass
  int64_t max_logits = 256;      // logit rows of one pass
  // Memory for what keep() remembers, beside the sequences' own.
  int32_t snapshots = 0;
  int32_t snapshot_pages = 0;

  ForwardLimits forward() const { return {max_tokens, max_sequences, max_logits, max_positions}; }
};

// One sequence's part of a pass.
struct Window {
  int32_t sequence = 0;
  std::span<const int32_t> tokens;
  // Pending tokens between n and the window, fed by earlier passes since the last advance(). What
  // was fed beyond them is dropped.
  int32_t pending = 0;
  // Every token is committed at once, any length; else at most max_window positions past n, and
  // none is until advance().
  bool prefill = false;
  // How many of the window's last tokens give logits, in [0, tokens.size()].
  int32_t n_logits = 0;
};

// Throws Error naming `source` if the text is empty, holds an id that is not in [0, vocab), or is
// longer than max_positions.
void check_text(const std::string& source, std::span<const int32_t> ids, int64_t vocab,
                int64_t max_positions);

class Runner {
 public:
  Runner(std::shared_ptr<const Model> model, const Device& device, RunnerLimits limits);
  // On the CPU; the context must outlive it.
  Runner(std::shared_ptr<const Model> model, const ops::Context& context, RunnerLimits limits)
      : Runner(std::move(model), *cpu_device(context), limits) {}

  const Model& model() const { return *model_; }
  const RunnerLimits& limits() const { return limits_; }
  // On the device.
  const ModelMemory& memory() const { return memory_sizes_; }

  // A new empty sequence. Fails when max_sequences are open.
  int32_t open();
  void close(int32_t sequence);
  int64_t n(int32_t sequence) const { return sequences_[sequence].state.n; }

  // Runs the windows, each of another sequence; returns their logits in order, [rows, vocab], valid
  // until the next pass. Throws Error for a position beyond max_positions; nothing has changed
  // then.
  const float* run(std::span<const Window> windows);

  // Of the tokens pending after n, the first `count` are committed and the others are dropped.
  // Counts that were never fed are a programmer's mistake.
  void advance(int32_t sequence, int64_t count);

  // Up to k drafts of the model's own drafting head (ModelOptions::mtp): the first is of the token
  // after `last`, which follows the n tokens committed. Nothing may be pending.
  std::vector<int32_t> draft(int32_t sequence, int32_t last, int32_t k, ops::Sampler& sampler,
                             const ops::SamplerParams& sampling);

  // Remembers the state of a sequence that a prefill has just brought to a grid point, the text up
  // to there being the first n of `tokens`, as long as nobody else needs the memory. Copies no
  // state but the conv's rows.
  void keep(int32_t sequence, std::span<const int32_t> tokens);
  // Goes on from the longest beginning of `tokens`, at most `limit` long, that is remembered and
  // longer than n. Nothing may be pending.
  void resume(int32_t sequence, std::span<const int32_t> tokens, int64_t limit);
  // Forgets all of it.
  void forget();

  const StateTraffic& traffic() const { return traffic_; }
  int64_t state_bytes() const { return backend_->state_bytes(); }
  int64_t scratch_bytes() const { return backend_->scratch_bytes(); }
  int64_t n_saturated() const { return backend_->n_saturated(); }

 private:
  struct Sequence : HeldMemory {
    int64_t n_pending = 0;   // tokens fed past n that advance() may commit
    int64_t last_pass = -1;  // the last pass that held a window of it
    bool open = false;
  };

  const Sequence& opened(int32_t sequence) const;
  Sequence& opened(int32_t sequence);
  void check_window(const Window& window) const;
  void act();

  std::shared_ptr<const Model> model_;
  ModelMemory memory_sizes_;
  RunnerLimits limits_;
  std::unique_ptr<Backend> backend_;
  SequenceMemory memory_;
  std::vector<Sequence> sequences_;
  StateTraffic traffic_;
  int64_t n_passes_ = 0;
  PackedWindows windows_;
};

// A sequence that is closed on every way out.
class OpenSequence {
 public:
  explicit OpenSequence(Runner& runner) : runner_(runner), id_(runner.open()) {}
  ~OpenSequence() { runner_.close(id_); }
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  int32_t id() const { return id_; }

 private:
  Runner& runner_;
  int32_t id_;
};

}  // namespace replayssm
