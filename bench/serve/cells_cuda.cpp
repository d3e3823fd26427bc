#include "bench/serve/cells_cuda.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "bench/serve/cost_model.h"
#include "bench/serve/decode_cuda.h"
#include "core/error.h"
#include "replay/grid.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kSpread = 128;  // of positions around the context; a multiple of the grid
constexpr int kWarmSteps = 20;
constexpr int kPartRepeats = 20;

double now_us() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

// The host's side of a steady decode.
class SteadyDecode {
 public:
  SteadyDecode(DecodeCuda& decode, const ServeCell& cell)
      : decode_(decode),
        cell_(cell),
        shape_{cell.batch, cell.window},
        grid_(decode.model().recurrent.empty() ? Grid{} : decode.model().recurrent[0].problem.grid),
        arrays_(decode.arrays(shape_)),
        sequences_(static_cast<size_t>(cell.batch)) {
    const int64_t pages = decode.pages_each();
    for (int32_t i = 0; i < cell.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      const int64_t n = cell.context - kSpread / 2 + 5 * i % kSpread;
      const int32_t stood = std::max(1, static_cast<int32_t>(cell.accepted));
      // As a step that advanced to n left it.
      s.state = {n, grid_.checkpoint_of(n - stood), i, i};
      s.stood = stood;
      s.next = i % static_cast<int32_t>(decode.model().spec().vocab);
      for (int64_t p = 0; p < pages; ++p) {
        arrays_.pages[i * pages + p] = static_cast<int32_t>(i * pages + p);
      }
    }
    decode.send_pages(shape_);
    fill();
  }

  StepShape shape() const { return shape_; }

  // The graphs are there: the first one goes ahead of its step.
  void start() { launch(); }

  // Microseconds of one step: the whole, from one wait to the next; of it the host's work that the
  // device waits for, from the outcome of the step before to the release; and the launch of the
  // step after it, while the device works.
  struct Times {
    double step, host, launch;
  };
  Times step() {
    const double begin = now_us();
    if (outcome_) take(*outcome_);
    fill();
    decode_.release(shape_);
    const double released = now_us();
    ++n_steps_;
    launch();
    const double launched = now_us();
    outcome_ = decode_.wait(shape_);
    return {now_us() - begin, released - begin, launched - released};
  }

  // Runs what has been launched ahead.
  void finish() {
    decode_.release(shape_);
    decode_.wait(shape_);
  }

 private:
  struct Sequence {
    SequenceState state;
    int32_t stood = 1;  // tokens of the last window that stood
    int32_t next = 0;   // the token after them
    Row row;
  };

  void launch() {
    decode_.launch(shape_, kept_sets(cell_.way) == 2 ? static_cast<int32_t>(n_steps_ % 2) : 0);
  }

  void fill() {
    const auto vocab = static_cast<uint64_t>(decode_.model().spec().vocab);
    for (int32_t i = 0; i < cell_.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      const int64_t first = int64_t{i} * cell_.window;
      const SequenceState& at = s.state;
      s.row = {at.n,        at.c, at.n, cell_.window, first, at.checkpoint_slot, at.checkpoint_slot,
               at.ring_slot};
      arrays_.windows.set_row(i, s.row);
      arrays_.stands[i] = stands(i);
      for (int32_t t = 0; t < cell_.window; ++t) {
        const uint64_t draft = static_cast<uint64_t>(first + t + 7919 * n_steps_) % vocab;
        arrays_.windows.tokens[first + t] = t == 0 ? s.next : static_cast<int32_t>(draft);
      }
      if (cell_.way != StateMethod::kReplay) fill_baseline(i, s);
    }
  }

  void fill_baseline(int32_t i, const Sequence& s) {
    const int32_t window = cell_.window;
    const int64_t token = int64_t{i} * window;
    const bool snapshots = cell_.way == StateMethod::kSnapshots;
    const bool joint = cell_.way == StateMethod::kJointAdvance;
    const int32_t slot = snapshots ? i * window + s.stood - 1 : i;
    arrays_.state_rows[i] = {slot, joint ? s.stood : 0, joint ? slot : -1, window, token, token};
    for (int32_t t = 0; t < window; ++t) {
      arrays_.snapshot_slots[token + t] = snapshots ? i * window + t : i;
    }
  }

  // Whole tokens whose mean is the rate, staggered over the sequences.
  int32_t stands(int32_t i) const {
    const double at = static_cast<double>(n_steps_ + i) * cell_.accepted;
    return static_cast<int32_t>(std::floor(at + cell_.accepted) - std::floor(at));
  }

  void take(const StepOutcome& outcome) {
    for (int32_t i = 0; i < cell_.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      s.stood = outcome.n_accepted[i] + 1;
      s.next = outcome.next[i];
      if (s.next < 0) fail("sequence ", i, ": the model gave NaN logits");
      const Status status = commit_step(grid_, s.row, s.stood, s.state);
      REPLAYSSM_CHECK(status == Status::kOk, "commit of ", s.stood);
      if (s.state.n >= cell_.context + kSpread / 2) {
        s.state.n -= kSpread;
        s.state.c -= kSpread;
      }
    }
  }

  DecodeCuda& decode_;
  const ServeCell& cell_;
  StepShape shape_;
  Grid grid_;
  StepArrays arrays_;
  std::vector<Sequence> sequences_;
  std::optional<StepOutcome> outcome_;  // of the last step
  int64_t n_steps_ = 0;
};

ops::cuda::WeightType weight_type(const ServeModel& model) {
  using ops::cuda::WeightType;
  if (!model.fp8) return WeightType::kBF16;
  return has_mixer<GdnSpec>(model.description.spec) ? WeightType::kFp8Block : WeightType::kFp8Row;
}

nlohmann::json times_json(const StepTimes& t) {
  return {{"weights", t.weights},
          {"state", t.state},
          {"kv", t.kv},
          {"rest", t.rest},
          {"total", t.total()}};
}

}  // namespace

std::string ServeCell::name() const {
  char text[96];
  std::snprintf(text, sizeof text, "%s/%s/T%d/A%.1f/B%d/C%d", state_method_name(way),
                dtype_name(checkpoint), window, accepted, batch, context);
  return text;
}

nlohmann::json measure_cell(const ServeModel& model, const ServeCell& cell,
                            const CellLength& length, bool exact) {
  DecodeCudaOptions options;
  options.model.way = cell.way;
  options.model.max_window = cell.window;
  options.model.checkpoint = cell.checkpoint;
  options.model.weights = weight_type(model);
  options.max_rows = cell.batch;
  options.max_positions = cell.context + kSpread / 2 + cell.window;
  options.exact = exact;
  DecodeCuda decode(model.description, model.folder, model.folder.empty(), options);
  decode.fill_state();
  SteadyDecode steady(decode, cell);
  decode.prepare(steady.shape());
  steady.start();
  for (int i = 0; i < kWarmSteps; ++i) steady.step();

  std::vector<double> step_ms, host_us, launch_us;
  const double begin = now_us();
  for (int i = 0; i < length.steps; ++i) {
    if (i >= CellLength::kMinSteps && (now_us() - begin) / 1e6 > length.seconds) break;
    const auto times = steady.step();
    step_ms.push_back(times.step / 1e3);
    host_us.push_back(times.host);
    launch_us.push_back(times.launch);
  }
  steady.finish();
  const double ms = mean(step_ms);
  const double experts_read = decode.experts_read();

  StepTimes parts;
  parts.weights = decode.time_parts(steady.shape(), kWeightsPart, kPartRepeats);
  parts.state = decode.time_parts(steady.shape(), kStatePart, kPartRepeats);
  parts.kv = decode.time_parts(steady.shape(), kKvPart, kPartRepeats);
  parts.rest = decode.time_parts(steady.shape(), kRestPart, kPartRepeats);

  StepWorkload work;
  work.rows = cell.batch;
  work.window = cell.window;
  work.accepted = cell.accepted;
  work.context = cell.context;
  work.state = cell.way;
  work.checkpoint = cell.checkpoint;
  work.fp8 = model.fp8;
  work.experts_read = experts_read;
  const CostModel cost = cost_model(model.description.spec, work);

  nlohmann::json memory;
  for (const auto& [purpose, bytes] : decode.memory()) memory[purpose] = bytes;
  return {{"state", state_method_name(cell.way)},
          {"dtype", dtype_name(cell.checkpoint)},
          {"window", cell.window},
          {"accepted", cell.accepted},
          {"batch", cell.batch},
          {"context", cell.context},
          {"steps", step_ms.size()},
          {"tokens_per_second", cell.batch * cell.accepted / ms * 1e3},
          {"ms", ms},
          {"ms_p50", quantile(step_ms, 0.5)},
          {"ms_p99", quantile(step_ms, 0.99)},
          {"host_us", quantile(host_us, 0.5)},
          {"host_us_p99", quantile(host_us, 0.99)},
          {"launch_us", quantile(launch_us, 0.5)},
          {"parts_ms", times_json(parts)},
          {"floor_ms", times_json(cost.floor)},
          {"predicted_ms", times_json(cost.predicted)},
          {"floor_fraction", cost.floor.total() / ms},
          {"bytes",
           {{"weights", cost.weight_bytes}, {"state", cost.state_bytes}, {"kv", cost.kv_bytes}}},
          {"experts_read", experts_read},
          {"memory", memory}};
}

}  // namespace replayssm::bench
