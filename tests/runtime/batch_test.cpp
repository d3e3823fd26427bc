// Many sequences in one pass are each what they are alone; a slot that is used again carries
// nothing over.
#include "runtime.h"

namespace replayssm {
namespace {

class Batch : public testing::TestWithParam<Types> {
 protected:
  static constexpr int32_t kMaxWindow = 5;

  void SetUp() override { SKIP_IF_REFUSED(fixture(GetParam().fixture), options()); }
  static ModelOptions options() {
    return options_of(GetParam(), device_intervals().front(), kMaxWindow);
  }
  std::unique_ptr<Rig> engine(int32_t max_sequences, int n_threads = 1) const {
    return std::make_unique<Rig>(fixture(GetParam().fixture), options(), n_threads,
                                 RunnerLimits{max_sequences, 512, 256, 256});
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }

  std::mt19937_64 rng_{42};
};

struct Client {
  std::vector<int32_t> ids;
  std::vector<float> want;  // of the text alone
  int32_t sequence = -1;
  int64_t pending = 0;       // fed past n
  std::vector<int32_t> fed;  // the window at hand
  int64_t right = 0;         // how many of its tokens, from the first, are the text's
  int64_t start = 0;
};

TEST_P(Batch, EachIsAsIfAlone) {
  const auto alone = engine(1);
  const auto together = engine(6, 2);
  Runner& runner = together->runner();
  std::vector<Client> clients(14);  // more than slots: they queue for them
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].ids = random_ids(1 + 11 * i, i);
    clients[i].want = logits_of(alone->runner(), clients[i].ids, {});
  }
  size_t n_done = 0, next = 0;
  std::vector<Client*> open;
  while (n_done < clients.size()) {
    while (open.size() < 6 && next < clients.size()) {
      open.push_back(&clients[next++]);
      open.back()->sequence = runner.open();
    }
    std::shuffle(open.begin(), open.end(), rng_);
    std::vector<Window> windows;
    std::vector<Client*> fed;
    for (Client* c : open) {
      if (open.size() > 1 && below(4) == 0) continue;
      const int64_t n = runner.n(c->sequence), left = std::ssize(c->ids) - n;
      Window window;
      window.sequence = c->sequence;
      window.prefill = below(4) == 0;
      // Pending rows go on where the last window ended, if all of it was right.
      window.pending = !window.prefill && c->pending < left && below(2) == 0
                           ? static_cast<int32_t>(c->pending)
                           : 0;
      c->start = n + window.pending;
      const int64_t rest = left - window.pending;
      const int64_t size = window.prefill ? 1 + below(std::min<int64_t>(rest, 40))
                                          : 1 + below(kMaxWindow - window.pending);
      c->right = window.prefill ? size : std::min(rest, 1 + below(size));
      c->fed.clear();
      for (int64_t i = 0; i < size; ++i) {
        c->fed.push_back(i < c->right ? c->ids[static_cast<size_t>(c->start + i)]
                                      : static_cast<int32_t>(below(kVocab)));
      }
      window.tokens = c->fed;
      window.n_logits = static_cast<int32_t>(size);
      windows.push_back(window);
      fed.push_back(c);
    }
    if (windows.empty()) continue;
    const float* logits = runner.run(windows);
    for (size_t w = 0; w < windows.size(); ++w) {
      Client* c = fed[w];
      const float* want = c->want.data() + c->start * kVocab;
      ASSERT_TRUE(std::equal(want, want + c->right * kVocab, logits))
          << "text of " << c->ids.size() << " at " << c->start;
      logits += std::ssize(c->fed) * kVocab;
      c->pending = 0;
      if (windows[w].prefill) continue;
      const bool all_right = c->right == std::ssize(c->fed);
      // Keep it pending, drop it, or let some of it stand.
      const int64_t fed_past_n = windows[w].pending + c->right;
      const int64_t what = below(4);
      if (what == 0 && all_right && fed_past_n < kMaxWindow) {
        c->pending = fed_past_n;
      } else if (what == 1) {
        runner.advance(c->sequence, 0);
      } else {
        runner.advance(c->sequence, 1 + below(fed_past_n));
      }
    }
    std::erase_if(open, [&](Client* c) {
      if (runner.n(c->sequence) < std::ssize(c->ids)) return false;
      runner.close(c->sequence);
      ++n_done;
      return true;
    });
  }
}

// A long sequence, dropped in the middle of a verify step, then another in the same slot.
TEST_P(Batch, ASlotCarriesNothingOver) {
  const auto second = random_ids(50, 9);
  const auto fresh = engine(1);
  const auto want = logits_of(fresh->runner(), second, {});
  for (const int64_t first_size : {1, 3, 7, 8, 9, 40, 131}) {
    const auto used = engine(1);
    Runner& runner = used->runner();
    const auto first = random_ids(static_cast<size_t>(first_size), 8);
    const int32_t sequence = runner.open();
    Window window;
    window.sequence = sequence;
    window.tokens = first;
    window.prefill = true;
    runner.run({&window, 1});
    window.prefill = false;
    window.tokens = std::span(second).first(kMaxWindow);
    runner.run({&window, 1});
    if (first_size % 2 == 0) runner.advance(sequence, 2);
    runner.close(sequence);
    for (const LogitsMode mode : {LogitsMode::kDecode, LogitsMode::kVerify, LogitsMode::kPrefill}) {
      EXPECT_EQ(logits_of(runner, second, {mode, kMaxWindow, 4}), want) << first_size;
    }
  }
}

// Whatever ended the last text, the next one has its slot and its bits.
TEST_P(Batch, GenerateLeavesNoSlotBehind) {
  const auto e = engine(1);
  GenerateParams params;
  params.max_new_tokens = 20;
  const auto prompt = random_ids(12, 1);
  const auto want = text_of(*e, nullptr, prompt, params).ids;
  struct Stop {};
  for (const int64_t at : {0, 1, 5, 19}) {
    int64_t count = 0;
    const auto stop = [&](int32_t) {
      if (count++ == at) throw Stop{};
    };
    EXPECT_THROW(
        generate(e->runner(), e->sampler(), make_ngram_drafter().get(), prompt, params, stop),
        Stop);
    EXPECT_EQ(text_of(*e, nullptr, prompt, params).ids, want);
  }
  EXPECT_THROW(text_of(*e, nullptr, {}, params), Error);
  EXPECT_THROW(text_of(*e, nullptr, {kVocab}, params), Error);
  EXPECT_EQ(text_of(*e, nullptr, prompt, params).ids, want);
}

INSTANTIATE_TEST_SUITE_P(Runtime, Batch, testing::ValuesIn(types_of_devices()),
                         [](const auto& info) { return types_name(info.param); });

}  // namespace
}  // namespace replayssm
