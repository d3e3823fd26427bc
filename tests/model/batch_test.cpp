// A token's logits depend on its sequence's tokens alone: not on batch mates, slots, drafts that
// were rejected, dropped steps, forks or what a slot held before. Bitwise, everywhere.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <random>

#include "engine.h"
#include "testing.h"

namespace {
thread_local int64_t n_allocations = 0;
}  // namespace

// noinline: GCC would else see malloc meet operator delete and warn of a mismatch
__attribute__((noinline)) void* operator new(size_t size) {
  ++n_allocations;
  if (void* p = std::malloc(size != 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(size != 0 ? size : 1);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace replayssm {
namespace {

constexpr int32_t kVocab = 120;

struct Mode {
  const char* fixture;
  int32_t interval;
  DType activation, ring, checkpoint;
};
constexpr Mode kModes[] = {
    {"qwen3_5_tied", 16, DType::kF32, DType::kF32, DType::kF32},
    {"qwen3_5_bf16", 8, DType::kBF16, DType::kF16, DType::kF16},
    {"qwen3_5_untied", 8, DType::kBF16, DType::kBF16, DType::kI8},
    {"nemotron_h_pattern", 8, DType::kF32, DType::kF32, DType::kF32},
    {"nemotron_h_bf16", 16, DType::kBF16, DType::kF16, DType::kF16},
    {"nemotron_h_bf16", 8, DType::kBF16, DType::kBF16, DType::kI8},
    {"qwen3_next", 8, DType::kBF16, DType::kF16, DType::kF16},
    {"nemotron_h_latent", 16, DType::kF32, DType::kF32, DType::kF32},
};

class Batch : public ::testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<Engine> engine(int n_threads = 1) const {
    ModelOptions options;
    options.interval = GetParam().interval;
    options.max_window = 5;
    options.activation = GetParam().activation;
    options.ring = GetParam().ring;
    options.checkpoint = GetParam().checkpoint;
    const bool pairs = best_isa() == Isa::kAvx512 && ops::bf16_dot_supported();
    return std::make_unique<Engine>(fixture(GetParam().fixture), options, pairs, n_threads);
  }

  std::vector<int32_t> random_ids(size_t n) {
    std::vector<int32_t> out(n);
    for (auto& id : out) id = static_cast<int32_t>(random_() % kVocab);
    return out;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::mt19937_64 random_{7};
};

// The logits of tokens [from, to) of a reference run.
std::vector<float> part(const std::vector<float>& logits, int64_t from, int64_t to) {
  return {logits.begin() + from * kVocab, logits.begin() + to * kVocab};
}

// A speculating client: each step it sends true tokens, then wrong drafts, and keeps what it likes.
struct Client {
  std::vector<int32_t> ids;
  std::vector<float> want;  // of a plain prefill
  Sequence sequence;
};

TEST_P(Batch, RejectedDraftsDroppedStepsAndBatchMatesLeaveNoTrace) {
  for (const int n_threads : {1, 2}) {
    const auto engine = this->engine(n_threads);
    std::vector<Client> clients(5);
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].ids = random_ids(20 + 20 * i);
      clients[i].want = engine->logits(clients[i].ids, 1000, 1);
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].sequence = engine->sequence(static_cast<int32_t>(i * 3 % Engine::kSlots));
    }
    for (;;) {
      std::vector<Window> windows;
      std::vector<std::pair<Client*, int64_t>> expected;  // whose tokens, how many are true
      std::shuffle(clients.begin(), clients.end(), random_);
      for (auto& client : clients) {
        const int64_t n = client.sequence.state.n, left = std::ssize(client.ids) - n;
        if (left == 0 || below(4) == 0) continue;
        const bool sweep = below(5) == 0;
        const int64_t size = sweep ? 1 + below(std::min<int64_t>(left, 30)) : below(6);
        const int64_t right = sweep ? size : std::min(left, below(size + 1));
        Window window{&client.sequence, {}, sweep ? Phase::kSweep : Phase::kStep};
        for (int64_t i = 0; i < size; ++i) {
          window.tokens.push_back(i < right ? client.ids[n + i]
                                            : static_cast<int32_t>(below(kVocab)));
        }
        window.advance = sweep ? -1 : below(4) == 0 ? 0 : right;
        windows.push_back(window);
        expected.push_back({&client, right});
      }
      std::vector<int64_t> starts;
      for (const auto& window : windows) starts.push_back(window.sequence->state.n);
      const auto logits = engine->run(windows);
      int64_t token = 0;
      for (size_t i = 0; i < windows.size(); ++i) {
        const auto [client, right] = expected[i];
        ASSERT_EQ(part(logits, token, token + right),
                  part(client->want, starts[i], starts[i] + right))
            << "at " << starts[i] << " with " << n_threads << " threads";
        token += std::ssize(windows[i].tokens);
      }
      if (std::all_of(clients.begin(), clients.end(),
                      [](const Client& c) { return c.sequence.state.n == std::ssize(c.ids); })) {
        break;
      }
    }
  }
}

// A slot that another sequence used, or that holds NaN, gives what a fresh one gives.
TEST_P(Batch, SlotsCarryNothingOver) {
  const auto engine = this->engine();
  const auto first = random_ids(60), second = random_ids(45);
  const auto fresh = engine->logits(second, 9, 5, 3);
  engine->logits(first, 33, 2, 3);
  EXPECT_EQ(engine->logits(second, 9, 5, 3), fresh);
  EXPECT_EQ(engine->logits(second, 0, 1, 6), fresh);
}

// A fork reads the parent's checkpoint, copies ring rows and the last page, and goes on alone.
TEST_P(Batch, ForksGoOnAsIfAlone) {
  const auto engine = this->engine();
  for (const int64_t at : {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40}) {
    const auto prefix = random_ids(static_cast<size_t>(at));
    auto left = prefix, right = prefix;
    for (int i = 0; i < 40; ++i) {
      left.push_back(static_cast<int32_t>(below(kVocab)));
      right.push_back(static_cast<int32_t>(below(kVocab)));
    }
    const auto want_left = engine->logits(left, 1000, 1, 0);
    const auto want_right = engine->logits(right, 1000, 1, 0);

    Sequence parent = engine->sequence(1);
    engine->run({{&parent, prefix, Phase::kSweep}});
    Sequence child = engine->sequence(2);
    const int32_t own_checkpoint = child.state.checkpoint_slot;
    const StateParts& parts = engine->state().parts;
    fill_with_nan(parts.ring(child.state.ring_slot));
    copy_spans(parts.ring(parent.state.ring_slot), parts.ring(child.state.ring_slot));
    for (int64_t page = 0; page < at / ops::kKvPage; ++page) child.pages[page] = parent.pages[page];
    if (at % ops::kKvPage != 0) {
      copy_spans(parts.page(parent.pages[at / ops::kKvPage]),
                 parts.page(child.pages[at / ops::kKvPage]));
    }
    child.state = {parent.state.n, parent.state.c, parent.state.checkpoint_slot,
                   child.state.ring_slot};

    for (int64_t n = at; n < at + 40;) {
      const int64_t size = std::min<int64_t>(1 + below(5), at + 40 - n);
      // the parent's folds go elsewhere as long as the child reads its slot
      const auto logits =
          engine->run({{&parent, {left.begin() + n, left.begin() + n + size}, Phase::kStep, -1, 5},
                       {&child,
                        {right.begin() + n, right.begin() + n + size},
                        Phase::kStep,
                        -1,
                        own_checkpoint}});
      ASSERT_EQ(part(logits, 0, size), part(want_left, n, n + size)) << at << " + " << n - at;
      ASSERT_EQ(part(logits, size, 2 * size), part(want_right, n, n + size)) << at;
      n += size;
    }
  }
}

TEST_P(Batch, SkippedRowsAndEmptyPassesRun) {
  const auto engine = this->engine();
  const auto ids = random_ids(20);
  const auto want = engine->logits(ids, 1000, 1);
  Sequence sequence = engine->sequence(4);
  engine->run({{&sequence, ids, Phase::kSweep}});
  EXPECT_TRUE(engine->run({}).empty());
  EXPECT_TRUE(engine->run({{&sequence, {}, Phase::kStep}}).empty());  // folds at most

  // a padding row between two real ones: its tokens are computed by no one and harm no one
  Sequence a = engine->sequence(0), b = engine->sequence(1);
  const std::vector<int32_t> tokens = {ids[0], ids[1], 0, 0, ids[0]};
  ForwardRow rows[3] = {};
  rows[0] = {{0, 0, 0, 2, 0, a.state.checkpoint_slot, a.state.checkpoint_slot, a.state.ring_slot},
             Phase::kStep,
             a.pages.data()};
  rows[1] = {{0, 0, 0, 2, 2, -1, -1, -1}, Phase::kStep, nullptr};
  rows[2] = {{0, 0, 0, 1, 4, b.state.checkpoint_slot, b.state.checkpoint_slot, b.state.ring_slot},
             Phase::kSweep,
             b.pages.data()};
  const std::vector<int64_t> wanted = {4, 1, 0};
  const std::vector<float> logits = engine->pass({rows, tokens, wanted});
  EXPECT_EQ(part(logits, 0, 1), part(want, 0, 1));
  EXPECT_EQ(part(logits, 1, 2), part(want, 1, 2));
  EXPECT_EQ(part(logits, 2, 3), part(want, 0, 1));
}

TEST_P(Batch, APassAllocatesNothing) {
  const auto engine = this->engine();
  Sequence sequence = engine->sequence(0);
  const auto ids = random_ids(40);
  engine->run({{&sequence, ids, Phase::kSweep}});
  const SequenceState& s = sequence.state;
  const ForwardRow row{{s.n, s.c, s.n, 3, 0, s.checkpoint_slot, s.checkpoint_slot, s.ring_slot},
                       Phase::kStep,
                       sequence.pages.data()};
  const std::vector<int64_t> wanted = {0, 2};
  const int64_t before = n_allocations;
  engine->forward().run({{&row, 1}, {ids.data(), 3}, wanted}, engine->state());
  EXPECT_EQ(n_allocations, before);
}

std::string mode_name(const ::testing::TestParamInfo<Mode>& info) {
  return concat(info.param.fixture, "_B", info.param.interval, "_",
                dtype_name(info.param.activation), "_", dtype_name(info.param.checkpoint));
}

INSTANTIATE_TEST_SUITE_P(Modes, Batch, ::testing::ValuesIn(kModes), mode_name);

}  // namespace
}  // namespace replayssm
