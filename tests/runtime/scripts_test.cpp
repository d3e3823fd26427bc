// Scripted drafts: accepts forced at every place of the ring and the grid, with exact counters.
#include <numeric>

#include "runtime.h"

namespace replayssm {
namespace {

class Scripts : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override { params_.sampling = {.temperature = 1.0f, .seed = 77}; }

  Text play(Rig& engine, const std::vector<int32_t>& prompt, const std::string& json) {
    const ScriptFile file(json);
    return text_of(engine, file.drafter().get(), prompt, params_);
  }

  GenerateParams params_;
};

// Accepts of 0, 1, K - 1 and K and a step without drafts, in all 120 orders, from prompts of every
// length up to 2 B: each order meets each place of the grid and of the ring.
TEST_P(Scripts, ForcedAcceptsInEveryOrder) {
  for (const int32_t interval : {8, 16}) {
    for (const int32_t k : {3, 7}) {
      const int32_t ring_rows = Grid::rows_for(interval, k + 1);
      Rig engine(GetParam(), interval, k + 1);
      Rig bare(GetParam(), interval, 1);
      params_.draft_tokens = k;
      params_.max_new_tokens = 2 * ring_rows + 5;
      const std::vector<Proposal> kinds = {{0, k}, {1, k}, {k - 1, k}, {k, k}, {0, 0}};
      std::vector<size_t> order = {0, 1, 2, 3, 4};
      size_t prompt_size = 0;
      std::vector<int32_t> prompt, want;
      int count = 0;
      do {
        // A new prompt every third order, its length one more.
        if (count++ % 3 == 0) {
          prompt_size = prompt_size % static_cast<size_t>(2 * interval) + 1;
          prompt = random_ids(prompt_size, prompt_size);
          want = text_of(bare, nullptr, prompt, params_).ids;
        }
        std::vector<Proposal> proposals;
        for (int round = 0; round < 40; ++round) {
          for (const size_t kind : order) proposals.push_back(kinds[kind]);
        }
        const Script script = script_of(want, proposals, k);
        const Text text = play(engine, prompt, script.json);
        ASSERT_EQ(text.ids, want) << "B " << interval << ", K " << k << ", prompt " << prompt_size;
        ASSERT_EQ(text.stats.steps, script.steps);
        ASSERT_EQ(text.stats.drafted, script.drafted);
        ASSERT_EQ(text.stats.accepted, script.accepted);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

// More than K proposed: cut to K. After the script's end: no drafts.
TEST_P(Scripts, CutToKAndSilentAtTheEnd) {
  constexpr int64_t kDrafts = 4;
  Rig engine(GetParam(), 8, kDrafts + 1);
  params_.draft_tokens = kDrafts;
  params_.max_new_tokens = 60;
  const auto prompt = random_ids(5, 4);
  const auto want = text_of(engine, nullptr, prompt, params_).ids;

  // 9 proposed, all right: 4 stand in each of 3 steps, then one token a step.
  const Script cut = script_of(want, {{9, 9}, {9, 9}, {9, 9}}, kDrafts);
  EXPECT_EQ(cut.accepted, 12);
  EXPECT_EQ(cut.steps, 3 + (60 - 1 - 15));
  const Text text = play(engine, prompt, cut.json);
  EXPECT_EQ(text.ids, want);
  EXPECT_EQ(text.stats.drafted, 12);
  EXPECT_EQ(text.stats.accepted, 12);
  EXPECT_EQ(text.stats.steps, cut.steps);

  for (const char* silent : {"[]", "[[]]", "[[],[],[]]"}) {
    const Text none = play(engine, prompt, silent);
    EXPECT_EQ(none.ids, want);
    EXPECT_EQ(none.stats.drafted, 0);
    EXPECT_EQ(none.stats.steps, 59);
  }
}

// A prompt of each length from one token, then drafts at once: shorter than the conv, exactly a
// grid point, one past it, K + 1.
TEST_P(Scripts, DraftsRightAfterAnyPrompt) {
  constexpr int64_t kDrafts = 5;
  Rig engine(GetParam(), 8, kDrafts + 1);
  params_.draft_tokens = kDrafts;
  params_.max_new_tokens = 24;
  for (size_t size = 1; size <= 35; ++size) {
    const auto prompt = random_ids(size, 100 + size);
    const auto want = text_of(engine, nullptr, prompt, params_).ids;
    const auto right = static_cast<int64_t>(size % (kDrafts + 1));
    const Script script = script_of(
        want, {{right, kDrafts}, {0, 0}, {kDrafts, kDrafts}, {0, kDrafts}, {0, 0}}, kDrafts);
    const Text text = play(engine, prompt, script.json);
    ASSERT_EQ(text.ids, want) << "prompt " << size;
    ASSERT_EQ(text.stats.accepted, script.accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Scripts, testing::ValuesIn(all_types()),
                         [](const auto& info) { return types_name(info.param); });

TEST(Scripts, BrokenFilesAreRefused) {
  const auto refuse = [](const std::string& json, std::initializer_list<std::string> parts) {
    const ScriptFile file(json);
    expect_refusal({file.path()}, [&] { file.drafter(); });
    expect_refusal(parts, [&] { file.drafter(); });
  };
  refuse("", {"not JSON"});
  refuse("[[1,2],", {"not JSON"});
  refuse("{\"a\": 1}", {"list of lists"});
  refuse("[1]", {"step 0"});
  refuse("[[1],[2],{}]", {"step 2"});
  refuse("[[1],[120]]", {"step 1", "120", "[0, 120)"});
  refuse("[[-1]]", {"step 0", "-1"});
  refuse("[[1.5]]", {"step 0", "1.5"});
  refuse("[[18446744073709551615]]", {"step 0", "18446744073709551615"});
  refuse("[[4294967297]]", {"step 0", "4294967297"});
  refuse("[[\"7\"]]", {"step 0", "7"});
  refuse("[[null]]", {"step 0", "null"});
  expect_refusal({"/no/such/script.json"},
                 [] { make_script_drafter("/no/such/script.json", kVocab); });
  expect_refusal({testing::TempDir()}, [] { make_script_drafter(testing::TempDir(), kVocab); });
}

}  // namespace
}  // namespace replayssm
