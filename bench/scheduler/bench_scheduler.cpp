// The scheduler alone, every pass taking no time: row-steps a second of CPU time.
//   build/bench_scheduler [SECONDS]
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "runtime/scheduler.h"

namespace {

using namespace replayssm;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Load {
  const char* name;
  int32_t rows;
  int64_t context;
  int64_t answer;  // tokens; then the next request comes
  int32_t drafts;
};

class Driver {
 public:
  explicit Driver(const Load& load) : load_(load), scheduler_(options(load)) {
    for (int32_t i = 0; i < load.rows; ++i) add();
  }

  // Steps until as many prompts as there are rows were read.
  void warm_up() {
    while (n_read_ < load_.rows) step();
  }

  double row_steps_a_second(double seconds) {
    int64_t rows = 0;
    const double start = cpu_seconds();
    while (cpu_seconds() < start + seconds) rows += step();
    return static_cast<double>(rows) / (cpu_seconds() - start);
  }

 private:
  static SchedulerOptions options(const Load& load) {
    SchedulerOptions o;
    o.grid = {16, Grid::rows_for(16, 8)};
    o.max_window = 8;
    o.max_positions = load.context + load.answer;
    o.max_sequences = load.rows;
    const int64_t pages = ops::pages_for(o.max_positions + 1);
    o.pools.checkpoint_slots = 2 * load.rows;
    o.pools.ring_slots = load.rows;
    o.pools.kv_pages = static_cast<int32_t>(2 * load.rows * pages);
    o.cuts = {16, 256, {}};
    return o;
  }

  void add() {
    SequenceSpec spec;
    const auto number = static_cast<int32_t>(next_);
    for (int64_t t = 0; t < load_.context; ++t) {
      spec.tokens.push_back(static_cast<int32_t>(t < 2 ? number : t));
    }
    spec.max_length = load_.context + load_.answer;
    spec.max_drafts = load_.drafts;
    scheduler_.add(next_++, std::move(spec));
  }

  // One plan and its result; how many rows it had.
  int64_t step() {
    const StepPlan plan = scheduler_.plan();
    StepResult result;
    int64_t n_ended = 0;
    for (const StepRow& row : plan.rows) {
      RowResult& r = result.rows.emplace_back();
      const bool sweep = row.phase == Phase::kSweep;
      n_read_ += sweep && row.ends_text ? 1 : 0;
      r.n_tokens = row.row.n_tokens + row.max_drafts;
      r.n_commit = sweep ? r.n_tokens : 0;
      if (row.only_folds || !row.ends_text) continue;
      // Half of the drafts are accepted.
      r.accepted = row.max_drafts / 2;
      if (!sweep) r.n_commit = 1 + r.accepted;
      const Sequence& s = *scheduler_.find(row.key);
      auto& choice = r.choices.emplace_back();
      for (int32_t i = 0; i <= r.accepted; ++i) {
        choice.tokens.push_back(static_cast<int32_t>(s.length() % 1000));
      }
      choice.ended = s.length() + std::ssize(choice.tokens) == s.spec.max_length;
      n_ended += choice.ended ? 1 : 0;
    }
    scheduler_.commit(plan, result);
    for (; n_ended > 0; --n_ended) add();
    return std::ssize(plan.rows);
  }

  Load load_;
  Scheduler scheduler_;
  uint64_t next_ = 1;
  int64_t n_read_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  const Load loads[] = {
      {"256 rows, context 1,024", 256, 1024, 16384, 0},
      {"256 rows, context 1,024, 3 drafts", 256, 1024, 16384, 3},
      {"256 rows, context 16,384", 256, 16384, 16384, 0},
      {"256 rows, answers of 128 tokens", 256, 256, 128, 0},
      {"8 rows, context 1,024", 8, 1024, 16384, 0},
  };
  for (const Load& load : loads) {
    Driver driver(load);
    driver.warm_up();
    std::printf("%-36s %9.0f row-steps/s\n", load.name, driver.row_steps_a_second(seconds));
    std::fflush(stdout);
  }
  return 0;
}
