// Prefill, decode and verify give the same logits, to the bit: fixtures, every length round the
// grid.
#include "runtime.h"

namespace replayssm {
namespace {

class Logits : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    SKIP_IF_REFUSED(fixture(GetParam().fixture),
                    options_of(GetParam(), device_intervals().front(), 8));
  }
};

TEST_P(Logits, ModesAreBitwiseEqual) {
  const auto ids = random_ids(200, 7);
  for (const int32_t interval : device_intervals()) {
    SCOPED_TRACE(testing::Message() << "B " << interval);
    Rig engine(GetParam(), interval, 8);
    const auto want = logits_of(engine.runner(), ids, {});
    EXPECT_EQ(logits_of(engine.runner(), ids, {.mode = LogitsMode::kDecode}), want);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(logits_of(engine.runner(), ids, {LogitsMode::kVerify, 8, seed}), want) << seed;
    }
    // Another T_max is another ring, another chunk another pass: the same bits.
    Rig narrow(fixture(GetParam().fixture), options_of(GetParam(), interval, 3), 2,
               {1, 512, 37, 29});
    EXPECT_EQ(logits_of(narrow.runner(), ids, {}), want);
    EXPECT_EQ(logits_of(narrow.runner(), ids, {LogitsMode::kVerify, 3, 9}), want);
    EXPECT_EQ(logits_of(narrow.runner(), ids, {LogitsMode::kVerify, 1, 9}), want);
  }
}

// A prefix alone gives the prefix's logits, whichever way.
TEST_P(Logits, EveryLengthRoundTheGrid) {
  for (const int32_t interval : device_intervals()) {
    const auto longest = static_cast<size_t>(3 * interval + 3);
    const auto ids = random_ids(longest, 8);
    Rig engine(GetParam(), interval, 8);
    const auto want = logits_of(engine.runner(), ids, {});
    for (size_t size = 1; size <= longest; ++size) {
      const auto text = std::span(ids).first(size);
      const std::vector<float> part(want.begin(),
                                    want.begin() + static_cast<int64_t>(size) * kVocab);
      ASSERT_EQ(logits_of(engine.runner(), text, {}), part) << size;
      ASSERT_EQ(logits_of(engine.runner(), text, {.mode = LogitsMode::kDecode}), part) << size;
      ASSERT_EQ(logits_of(engine.runner(), text, {LogitsMode::kVerify, 7, 1}), part) << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Logits, testing::ValuesIn(types_of_devices()),
                         [](const auto& info) { return types_name(info.param); });

}  // namespace
}  // namespace replayssm
