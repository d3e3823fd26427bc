#include "runtime/budget.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "runtime/choice.h"
#include "runtime/model_drafts.h"

namespace replayssm {
namespace {

constexpr int64_t kPage = ops::kKvPage;
constexpr double kMiB = 1 << 20;
// The prefix cache's own bytes a page: a node of its tree.
constexpr int64_t kIndexBytes = 256;
// Of slots, of pages.
constexpr int64_t kMaxIndices = std::numeric_limits<int32_t>::max() / 2;

// What a slot and the like costs.
struct Unit {
  int64_t slot, ring, conv, conv_rows, page;

  explicit Unit(const ModelMemory& m) {
    conv_rows = m.conv_rows;
    slot = m.checkpoint_slot + conv_rows;
    ring = m.ring_slot;
    conv = m.conv_slot;
    page = m.kv_page + kIndexBytes;
  }
  // One sequence, without its pages.
  int64_t sequence() const { return slot + ring + conv; }
};

ForwardLimits forward_limits(const Model& model, const EngineOptions& options, int32_t sequences) {
  const int64_t steps = int64_t{sequences} * model.options().max_window;
  ForwardLimits limits;
  limits.max_tokens = steps + options.chunk_tokens;
  limits.max_rows = sequences;
  limits.max_logits = steps + kScoreTokens;
  limits.max_positions = options.max_positions;
  return limits;
}

std::string mib(int64_t bytes) {
  return concat(static_cast<int64_t>(static_cast<double>(bytes) / kMiB) + 1, " MiB");
}

class Fitter {
 public:
  Fitter(const Model& model, const ModelMemory& memory, const Model* draft, const Device& device,
         const EngineOptions& options)
      : model_(model),
        draft_(draft),
        device_(device),
        options_(options),
        memory_(memory),
        unit_(memory_) {
    if (draft != nullptr) draft_memory_ = device.memory(*draft);
    draft_unit_ = Unit(draft_memory_);
    budget_ = options.memory_bytes;
    if (budget_ == 0) budget_ = device.budget_bytes(memory_.weights + draft_memory_.weights);
  }

  BudgetPlan fit() {
    int32_t sequences = options_.max_sequences;
    while (sequences > 1 && !fits(sequences)) sequences -= (sequences + 7) / 8;
    if (!fits(sequences)) refuse();
    return plan(sequences);
  }

 private:
  // All but pages, snapshots and what grows with neither.
  int64_t fixed(int32_t sequences) const {
    int64_t bytes = memory_.weights + draw_bytes() +
                    device_.scratch_bytes(model_, forward_limits(model_, options_, sequences)) +
                    sequences * unit_.sequence() + spare_slots() * unit_.slot;
    if (draft_ != nullptr) bytes += draft_memory_.weights + draft_state(sequences);
    return bytes;
  }
  int64_t draw_bytes() const { return model_.spec().vocab * 17; }
  // A slot for hashes of states.
  int32_t spare_slots() const { return options_.test_hooks ? 1 : 0; }
  int64_t draft_state(int32_t sequences) const {
    const RunnerLimits limits = ModelDrafts::limits(sequences, options_.max_positions);
    return sequences * (draft_unit_.sequence() + least_pages() * draft_unit_.page) +
           12 * draft_->spec().vocab + device_.scratch_bytes(*draft_, limits.forward());
  }
  int64_t least_pages() const { return ops::pages_for(options_.max_positions); }
  bool fits(int32_t sequences) const {
    return fixed(sequences) + least_pages() * unit_.page <= budget_;
  }

  [[noreturn]] void refuse() const {
    const int64_t all = fixed(1) + least_pages() * unit_.page;
    const int64_t left = budget_ - fixed(1);
    if (left >= unit_.page) {
      fail("the memory budget of ", mib(budget_), " holds no sequence of ", options_.max_positions,
           " positions: ", mib(all), " would, or ", left / unit_.page * kPage, " positions");
    }
    fail("the memory budget of ", mib(budget_), " holds no sequence: weights take ",
         mib(memory_.weights), ", and ", mib(all), " would hold one of ", options_.max_positions,
         " positions");
  }

  BudgetPlan plan(int32_t sequences) const {
    BudgetPlan out;
    out.max_sequences = sequences;
    out.forward = forward_limits(model_, options_, sequences);
    int64_t rest = budget_ - fixed(sequences) - least_pages() * unit_.page;
    // Chosen by itself, the budget is what every sequence needs at its longest, and as much again
    // for the cache.
    const int64_t running = sequences * least_pages() * unit_.page;
    if (options_.memory_bytes == 0) {
      int64_t again = running + sequences * unit_.slot;
      if (draft_ != nullptr) {
        again += sequences * (draft_unit_.slot + least_pages() * draft_unit_.page);
      }
      rest = std::min(rest, running + again);
    }
    // Running sequences' pages first, of half of what there is at most; then a snapshot an
    // interval, and the draft model's beside it.
    const int64_t cache = rest - std::min(running - least_pages() * unit_.page, rest / 2);
    const int64_t interval = options_.snapshot_interval > 0 ? options_.snapshot_interval : 256;
    const int64_t pages_each = ops::pages_for(interval);
    const int64_t draft_each =
        draft_ != nullptr ? draft_unit_.slot + pages_each * draft_unit_.page : 0;
    int64_t snapshots = 0;
    if (options_.prefix_cache) {
      snapshots = cache / (unit_.slot + pages_each * unit_.page + draft_each);
      snapshots = std::min<int64_t>(snapshots, kMaxIndices / pages_each);
    }
    const int64_t pages = std::min<int64_t>(
        least_pages() + (rest - snapshots * (unit_.slot + draft_each)) / unit_.page, kMaxIndices);
    out.pools.checkpoint_slots = sequences + static_cast<int32_t>(snapshots);
    out.pools.ring_slots = sequences;
    out.pools.kv_pages = static_cast<int32_t>(pages);

    const ModelMemory& m = memory_;
    auto& purposes = out.report.purposes;
    purposes = {
        {"weights", m.weights},
        {"checkpoints", int64_t{sequences} * m.checkpoint_slot},
        {"rings", sequences * unit_.ring},
        {"conv", sequences * (unit_.conv + unit_.conv_rows)},
        {"KV pages", pages * m.kv_page},
        {"snapshots", (snapshots + spare_slots()) * unit_.slot},
        {"cache index", pages * kIndexBytes},
        {"scratch", device_.scratch_bytes(model_, out.forward) + draw_bytes()},
    };
    if (draft_ != nullptr) {
      purposes.emplace_back("draft weights", draft_memory_.weights);
      purposes.emplace_back("draft state", draft_state(sequences));
      purposes.emplace_back("draft snapshots", snapshots * draft_each);
      out.drafts = ModelDrafts::limits(sequences, options_.max_positions);
      out.drafts.snapshots = static_cast<int32_t>(snapshots);
      out.drafts.snapshot_pages = static_cast<int32_t>(snapshots * pages_each);
    }
    int64_t total = 0;
    for (const auto& purpose : purposes) total += purpose.second;
    out.report.budget = options_.memory_bytes == 0 ? total : budget_;
    REPLAYSSM_CHECK(total <= budget_, total, " bytes of ", budget_);
    return out;
  }

  const Model& model_;
  const Model* draft_;
  const Device& device_;
  const EngineOptions& options_;
  ModelMemory memory_;
  ModelMemory draft_memory_;
  Unit unit_;
  Unit draft_unit_{draft_memory_};
  int64_t budget_ = 0;
};

}  // namespace

BudgetPlan fit_budget(const Model& model, const ModelMemory& memory, const Model* draft,
                      const Device& device, const EngineOptions& options) {
  return Fitter(model, memory, draft, device, options).fit();
}

}  // namespace replayssm
