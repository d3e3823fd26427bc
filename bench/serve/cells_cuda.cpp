#include "bench/serve/cells_cuda.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "bench/baselines/dummy_weights.h"
#include "bench/baselines/loop_cuda.h"
#include "bench/serve/cost_model.h"
#include "bench/serve/engine_cells.h"
#include "core/error.h"
#include "replay/grid.h"
#include "runtime/cuda/backend_cuda.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kSpread = 128;  // of positions around the context; a multiple of the grid
constexpr int kWarmSteps = 20;
constexpr int kPartRepeats = 20;

double now_ms() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
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

// The host's side of the loop: sequence i starts at position context - 64 + 5 i mod 128, and goes
// back by 128 when it has passed context + 64, as if another of the same length took its place; so
// the phases of the grid are even, and so is the length of the cache.
class SteadyDecode {
 public:
  SteadyDecode(LoopCuda& loop, const ServeCell& cell)
      : loop_(loop),
        cell_(cell),
        shape_{cell.batch, cell.window},
        arrays_(loop.arrays(shape_)),
        sequences_(static_cast<size_t>(cell.batch)) {
    for (int32_t i = 0; i < cell.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      const int64_t n = cell.context - kSpread / 2 + 5 * i % kSpread;
      s.committed = std::max(1, static_cast<int32_t>(cell.accepted));
      // As a step that advanced to n left it.
      s.state = {n, loop.grid().checkpoint_of(n - s.committed), i, i};
      s.next = i % static_cast<int32_t>(loop.model().spec().vocab);
    }
    fill();
  }

  StepShape shape() const { return shape_; }

  // The graphs are there: the first one goes ahead of its step.
  void start() { launch(); }

  // Milliseconds from one wait to the next.
  double step() {
    const double begin = now_ms();
    if (outcome_) take(*outcome_);
    fill();
    loop_.release(shape_);
    ++n_steps_;
    launch();
    outcome_ = loop_.wait(shape_);
    return now_ms() - begin;
  }

  // Runs what has been launched ahead.
  void finish() {
    loop_.release(shape_);
    loop_.wait(shape_);
  }

 private:
  struct Sequence {
    SequenceState state;
    int32_t committed = 1;  // tokens of the last window
    int32_t next = 0;       // the token after them
    Row row;
  };

  void launch() {
    loop_.launch(shape_, kept_sets(cell_.method) == 2 ? static_cast<int32_t>(n_steps_ % 2) : 0);
  }

  void fill() {
    const auto vocab = static_cast<uint64_t>(loop_.model().spec().vocab);
    for (int32_t i = 0; i < cell_.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      const int64_t first = int64_t{i} * cell_.window;
      const SequenceState& at = s.state;
      s.row = {at.n,        at.c, at.n, cell_.window, first, at.checkpoint_slot, at.checkpoint_slot,
               at.ring_slot};
      arrays_.pass.set_row(i, s.row);
      arrays_.committed[i] = committed(i);
      for (int32_t t = 0; t < cell_.window; ++t) {
        const uint64_t draft = static_cast<uint64_t>(first + t + 7919 * n_steps_) % vocab;
        arrays_.pass.tokens[first + t] = t == 0 ? s.next : static_cast<int32_t>(draft);
      }
      fill_state_row(i, s);
    }
  }

  void fill_state_row(int32_t i, const Sequence& s) {
    const int32_t window = cell_.window;
    const int64_t token = int64_t{i} * window;
    const bool snapshots = cell_.method == StateMethod::kSnapshots;
    const bool joint = cell_.method == StateMethod::kJointAdvance;
    const int32_t slot = snapshots ? i * window + s.committed - 1 : i;
    arrays_.state_rows[i] = {slot, joint ? s.committed : 0, joint ? slot : -1, window, token,
                             token};
    for (int32_t t = 0; t < window; ++t) {
      arrays_.snapshot_slots[token + t] = snapshots ? i * window + t : i;
    }
  }

  // Whole tokens whose mean is the rate, staggered over the sequences.
  int32_t committed(int32_t i) const {
    const double at = static_cast<double>(n_steps_ + i) * cell_.accepted;
    return static_cast<int32_t>(std::floor(at + cell_.accepted) - std::floor(at));
  }

  void take(const StepOutcome& outcome) {
    for (int32_t i = 0; i < cell_.batch; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(i)];
      s.committed = outcome.n_accepted[i] + 1;
      s.next = outcome.next[i];
      if (s.next < 0) fail("sequence ", i, ": the model gave NaN logits");
      const Status status = commit_step(loop_.grid(), s.row, s.committed, s.state);
      REPLAYSSM_CHECK(status == Status::kOk, "commit of ", s.committed);
      if (s.state.n >= cell_.context + kSpread / 2) {
        s.state.n -= kSpread;
        s.state.c -= kSpread;
      }
    }
  }

  LoopCuda& loop_;
  const ServeCell& cell_;
  StepShape shape_;
  StepArrays arrays_;
  std::vector<Sequence> sequences_;
  std::optional<StepOutcome> outcome_;  // of the last step
  int64_t n_steps_ = 0;
};

OpenWeights weights_of(const ServeModel& model) {
  using ops::cuda::WeightType;
  if (!model.folder.empty()) return file_weights;
  if (!model.fp8) return dummy_weights(WeightType::kBF16);
  return dummy_weights(has_mixer<GdnSpec>(model.description.spec) ? WeightType::kFp8Block
                                                                  : WeightType::kFp8Row);
}

std::shared_ptr<const Model> model_of(const ServeModel& model, const ServeCell& cell) {
  ModelOptions options;
  options.max_window = cell.window;
  options.checkpoint = cell.checkpoint;
  return model.folder.empty() ? Model::of(model.description, DType::kBF16, options)
                              : Model::load(model.folder, options);
}

LoopOptions loop_options(const ServeCell& cell, bool exact) {
  return {cell.method, cell.batch, cell.context + kSpread / 2 + cell.window, exact};
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
  std::snprintf(text, sizeof text, "%s/%s/T%d/A%.1f/B%d/C%d", state_method_name(method),
                dtype_name(checkpoint), window, accepted, batch, context);
  return text;
}

namespace {

// A cell's result, its step times measured, and where they go by the loop's masked passes.
nlohmann::json result_of(const ServeModel& model, const ServeCell& cell,
                         const std::vector<double>& step_ms, const char* path, LoopCuda& loop,
                         StepShape shape) {
  const double experts_read = loop.experts_read();
  StepTimes parts;
  parts.weights = loop.time_parts(shape, kWeightsPart, kPartRepeats);
  parts.state = loop.time_parts(shape, kStatePart, kPartRepeats);
  parts.kv = loop.time_parts(shape, kKvPart, kPartRepeats);
  parts.rest = loop.time_parts(shape, kRestPart, kPartRepeats);

  StepWorkload work;
  work.rows = cell.batch;
  work.window = cell.window;
  work.accepted = cell.accepted;
  work.context = cell.context;
  work.state = cell.method;
  work.checkpoint = cell.checkpoint;
  work.fp8 = model.fp8;
  work.experts_read = experts_read;
  const CostModel cost = cost_model(model.description.spec, work);

  const double ms = mean(step_ms);
  nlohmann::json memory;
  for (const auto& [purpose, bytes] : loop.memory()) memory[purpose] = bytes;
  return {{"state", state_method_name(cell.method)},
          {"path", path},
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
          {"parts_ms", times_json(parts)},
          {"floor_ms", times_json(cost.floor)},
          {"predicted_ms", times_json(cost.predicted)},
          {"floor_fraction", cost.floor.total() / ms},
          {"bytes",
           {{"weights", cost.weight_bytes}, {"state", cost.state_bytes}, {"kv", cost.kv_bytes}}},
          {"experts_read", experts_read},
          {"memory", memory}};
}

}  // namespace

nlohmann::json measure_loop(const ServeModel& model, const ServeCell& cell,
                            const CellLength& length, bool exact) {
  const auto described = model_of(model, cell);
  LoopCuda loop(*described, weights_of(model), loop_options(cell, exact));
  SteadyDecode steady(loop, cell);
  loop.prepare(steady.shape());
  steady.start();
  for (int i = 0; i < kWarmSteps; ++i) steady.step();
  std::vector<double> step_ms;
  const double begin = now_ms();
  for (int i = 0; i < length.steps; ++i) {
    if (i >= CellLength::kMinSteps && now_ms() - begin > 1e3 * length.seconds) break;
    step_ms.push_back(steady.step());
  }
  steady.finish();
  return result_of(model, cell, step_ms, "loop", loop, steady.shape());
}

void measure_engine_cells(const ServeModel& model, const std::vector<ServeCell>& cells,
                          const CellLength& length, bool exact,
                          const std::function<void(const ServeCell&, nlohmann::json)>& done) {
  const ServeCell& first = cells.front();
  EngineCells wanted;
  wanted.window = first.window;
  wanted.accepted = first.accepted;
  wanted.context = first.context;
  wanted.steps = length.steps;
  wanted.least_steps = CellLength::kMinSteps;
  wanted.seconds = length.seconds;
  for (const ServeCell& cell : cells) wanted.batches.push_back(cell.batch);
  ThreadPool pool;
  const ops::Context context(pool);
  const auto described = model_of(model, first);
  CudaDeviceOptions options;
  options.exact = exact;
  options.weights = weights_of(model);
  std::vector<EngineTimes> times;
  measure_engine(described, cuda_device(options), context, wanted,
                 [&](const EngineTimes& batch) { times.push_back(batch); });
  for (size_t i = 0; i < cells.size(); ++i) {
    LoopCuda loop(*described, options.weights, loop_options(cells[i], exact));
    const SteadyDecode steady(loop, cells[i]);
    loop.prepare(steady.shape());
    nlohmann::json result =
        result_of(model, cells[i], times[i].step_ms, "engine", loop, steady.shape());
    result["mean_context"] = times[i].context;
    done(cells[i], std::move(result));
  }
}

}  // namespace replayssm::bench
