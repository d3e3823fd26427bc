#include "bench/baselines/plain_device.h"

#include <algorithm>

#include "core/error.h"
#include "model/cpu/forward_cpu.h"
#include "model/cpu/weights_cpu.h"
#include "replay/plain.h"

namespace replayssm::bench {
namespace {

// A ring slot's sequence: where its state is, and those after each token of its last window.
struct PlainSequence {
  int64_t n = 0;
  int32_t current = 0;             // of slots_each
  std::vector<int32_t> snapshots;  // of the last window's tokens; a prefill's are committed
};

struct PlainLayers {
  std::vector<std::shared_ptr<const PlainPlan>> plans;
  CpuLayers layers;  // conv and attention as replay has them; states in place of checkpoints
  int32_t slots_each = 1;
};

PlainLayers plan_plain(const Model& model, Isa isa) {
  PlainLayers out;
  out.layers = plan_layers_cpu(model, isa);
  out.slots_each = model.options().max_window + 1;
  for (RecurrentSizes& sizes : out.layers.sizes.recurrent) {
    auto planned = plan_plain_cpu(sizes.problem, isa);
    if (planned.plan == nullptr) fail("plain state: ", planned.reason);
    sizes.checkpoint_elements = planned.plan->checkpoint_elements();
    sizes.scale_elements = sizes.value_row = sizes.key_row = sizes.gate_row = 0;
    out.plans.push_back(std::move(planned.plan));
  }
  return out;
}

// Where the state goes after each token of each row.
struct PlainSlots {
  std::vector<Row> rows;       // as the pass sorts them, read_slot the plain state's
  std::vector<int32_t> write;  // [rows, stride]
  int32_t stride = 0;
  void* workspace = nullptr;  // of the largest plan
};

class PlainOps : public OpsCpu {
 public:
  PlainOps(EngineCpu& engine, const ForwardBatch& batch, const PassRowsCpu& rows, StatePool& pool,
           const PlainLayers& plain, const PlainSlots& slots)
      : OpsCpu(engine, batch, rows, pool), plain_(plain), slots_(slots) {}

  void recurrence(size_t layer, StepArgs args) const {
    place_state(plain_.layers.sizes.recurrent[layer], pool_.recurrent[layer], args);
    args.rows = slots_.rows.data();
    args.n_rows = static_cast<int32_t>(slots_.rows.size());
    args.workspace = slots_.workspace;
    plain_.plans[layer]->run({args, slots_.write.data(), slots_.stride}, engine_.parallel);
  }

 private:
  const PlainLayers& plain_;
  const PlainSlots& slots_;
};

PoolSizes with_states(PoolSizes sizes, int32_t slots_each) {
  sizes.checkpoint_slots = sizes.ring_slots * slots_each;
  return sizes;
}

class PlainBackend final : public Backend {
 public:
  PlainBackend(const Model& model, const ops::Context& context, const PoolSizes& sizes,
               const ForwardLimits& limits)
      : plain_(plan_plain(model, context.isa())),
        pool_(take_pool(plain_.layers.sizes, with_states(sizes, plain_.slots_each), memory_)),
        loaded_(load_weights_cpu(model, memory_)),
        forward_(model, plain_.layers, loaded_.weights, context, limits, scratch_),
        sequences_(static_cast<size_t>(sizes.ring_slots)) {
    REPLAYSSM_CHECK(!sizes.snapshots, "plain state keeps no prefixes");
    size_t bytes = 0;
    for (const auto& plan : plain_.plans) {
      bytes = std::max(bytes, plan->workspace_bytes(context.pool().size()));
    }
    slots_.workspace = scratch_.take("scratch", static_cast<int64_t>(bytes));
  }

  void launch(const ForwardBatch& batch, std::span<const DrawRow>) override {
    place(batch);
    forward_.run<PlainOps>(batch_of(batch), pool_, plain_, slots_);
  }
  PassResult wait() override { return {forward_.logits()}; }
  bool overlaps() const override { return false; }
  void fold(const Row&) override { refuse(); }
  bool draws() const override { return false; }

  const StateParts& parts() const override { return pool_.parts; }
  void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) override {
    copy_spans(from, to);
  }
  void poison(std::span<const MemorySpan> spans) override { fill_with_nan(spans); }
  void read(std::span<const MemorySpan>, std::byte*) const override { refuse(); }
  void write(const std::byte*, std::span<const MemorySpan>) override { refuse(); }
  std::vector<float> checkpoint_values(size_t, int32_t) const override { refuse(); }
  std::vector<float> page_values(size_t, int32_t) const override { refuse(); }
  MemorySpan embedding() const override { refuse(); }
  int64_t state_bytes() const override { return memory_.used(); }
  int64_t scratch_bytes() const override { return scratch_.used() + forward_.bytes(); }
  int64_t n_saturated() const override { return forward_.n_saturated(); }

 private:
  [[noreturn]] static void refuse() { fail("plain state keeps no prefixes"); }

  // The rows in the order of a pass, and the slots of their states.
  void place(const ForwardBatch& batch) {
    slots_.rows.clear();
    slots_.write.clear();
    slots_.stride = 0;
    for (const ForwardRow& r : batch.rows) {
      slots_.stride = std::max(slots_.stride, r.row.n_tokens);
    }
    for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
      for (const ForwardRow& r : batch.rows) {
        if (r.phase == phase && r.row.read_slot >= 0) place_row(r);
      }
    }
  }

  void place_row(const ForwardRow& r) {
    PlainSequence& s = sequences_[static_cast<size_t>(r.row.ring_slot)];
    if (r.row.n == 0) s = {};
    const int64_t accepted = r.row.n - s.n;
    const auto n_snapshots = std::ssize(s.snapshots);
    REPLAYSSM_CHECK(accepted >= 0 && accepted <= n_snapshots && r.row.start == r.row.n,
                    "plain state at ", s.n, ", a window from ", r.row.n);
    REPLAYSSM_CHECK(accepted > 0 || n_snapshots != 1, "a plain token cannot be undone");
    if (accepted > 0) s.current = s.snapshots[static_cast<size_t>(accepted - 1)];
    s.n = r.row.n;
    s.snapshots.clear();
    const int32_t first = r.row.ring_slot * plain_.slots_each;
    Row row = r.row;
    row.read_slot = row.write_slot = first + s.current;
    slots_.rows.push_back(row);
    const bool sweep = r.phase == Phase::kSweep;
    for (int32_t i = 0; i < slots_.stride; ++i) {
      int32_t slot = -1;
      if (i < row.n_tokens && sweep) {
        // Committed at once: the last token's state takes the place of the sequence's own.
        if (i + 1 == row.n_tokens) slot = s.current;
      } else if (i < row.n_tokens) {
        slot = row.n_tokens == 1 ? s.current : (s.current + 1 + i) % plain_.slots_each;
        s.snapshots.push_back(slot);
      }
      slots_.write.push_back(slot < 0 ? -1 : first + slot);
    }
    if (sweep) s.n += row.n_tokens;
  }

  // Slots are checked against the pool of states, which has no use for a replay row's.
  ForwardBatch batch_of(const ForwardBatch& batch) {
    rows_.assign(batch.rows.begin(), batch.rows.end());
    for (ForwardRow& r : rows_) {
      if (r.row.read_slot >= 0) r.row.read_slot = r.row.write_slot = 0;
    }
    return {rows_, batch.tokens, batch.logit_tokens};
  }

  PlainLayers plain_;
  HostArena memory_, scratch_;
  StatePool pool_;
  LoadedWeightsCpu loaded_;
  ForwardCpu forward_;
  std::vector<PlainSequence> sequences_;
  PlainSlots slots_;
  std::vector<ForwardRow> rows_;
};

class PlainDevice final : public Device {
 public:
  explicit PlainDevice(const ops::Context& context)
      : context_(context), replay_(cpu_device(context)) {}

  ModelMemory memory(const Model& model) const override {
    const PlainLayers plain = plan_plain(model, context_.isa());
    ModelMemory out = memory_of(plain.layers.sizes);
    out.checkpoint_slot *= plain.slots_each;
    out.weights = weight_bytes_cpu(model);
    return out;
  }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    return replay_->scratch_bytes(model, limits);
  }
  int64_t budget_bytes(int64_t weights) const override { return replay_->budget_bytes(weights); }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<PlainBackend>(model, context_, sizes, limits);
  }

 private:
  const ops::Context& context_;
  std::unique_ptr<Device> replay_;
};

}  // namespace

std::unique_ptr<Device> plain_device(const ops::Context& context) {
  return std::make_unique<PlainDevice>(context);
}

}  // namespace replayssm::bench
