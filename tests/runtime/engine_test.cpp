// Requests together, warm or cold, are each what they are alone.
#include "engine.h"

#include <nlohmann/json.hpp>

namespace replayssm {
namespace {

struct EngineCase {
  const char* name;
  const char* folder;
  std::optional<DType> checkpoint;
};

class EngineTest : public testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override { SKIP_IF_REFUSED(fixture(GetParam().folder), model_options()); }
  static ModelOptions model_options() {
    ModelOptions model;
    model.interval = device_intervals().front();
    model.max_window = 4;
    model.checkpoint = GetParam().checkpoint;
    return model;
  }
  std::unique_ptr<Bench> bench(EngineOptions options, int n_threads = 1) const {
    return std::make_unique<Bench>(fixture(GetParam().folder), model_options(), std::move(options),
                                   n_threads);
  }
};

TEST_P(EngineTest, IdenticalRequestsAtOnceAreOneAnswer) {
  const auto b = bench(small_options(), 2);
  GenerationRequest request = request_of(some_ids(75, 1), 40);
  request.logprobs = 2;
  request.sampling.temperature = 0.8f;
  request.sampling.seed = 7;
  std::vector<Sent> sent;
  for (int i = 0; i < 20; ++i) sent.push_back(b->send(request));
  for (const Sent& s : sent) s.client->wait();
  b->expect_quiet();
  EXPECT_EQ(sent[0].client->ids(), b->alone(request));
  for (const Sent& s : sent) EXPECT_EQ(s.client->answer(), sent[0].client->answer());
}

TEST_P(EngineTest, DifferentRequestsAtOnceAreEachAsAlone) {
  const auto b = bench(small_options(), 2);
  std::vector<GenerationRequest> requests;
  std::vector<Sent> sent;
  for (uint64_t i = 0; i < 24; ++i) {
    requests.push_back(request_of(some_ids(1 + 9 * i, i), 1 + static_cast<int64_t>(i * 5 % 37)));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    requests.back().sampling.seed = i;
  }
  for (const auto& request : requests) sent.push_back(b->send(request));
  for (const Sent& s : sent) s.client->wait();
  b->expect_quiet();
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].client->ids(), b->alone(requests[i])) << i;
    EXPECT_EQ(sent[i].client->answer().reason, FinishReason::kLength);
  }
}

// Chrome's format: complete events with times, the steps' and the requests'.
TEST_P(EngineTest, WritesATrace) {
  const TempFolder folder;
  EngineOptions options = small_options();
  options.trace_file = folder.file("trace.json");
  auto b = bench(options);
  GenerationRequest request = request_of(some_ids(70, 1), 5);
  request.name = "a \"name\"";
  b->ask(request);
  b.reset();
  const auto trace = nlohmann::json::parse(read_text(options.trace_file));
  int64_t steps = 0, requests = 0;
  for (const auto& event : trace) {
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_GE(event.at("dur").get<double>(), 0);
    steps += event.at("name") == "step" ? 1 : 0;
    if (event.at("name") != request.name) continue;
    ++requests;
    EXPECT_EQ(event.at("args").at("new"), 5);
  }
  EXPECT_GE(steps, 5);
  EXPECT_EQ(requests, 1);
}

INSTANTIATE_TEST_SUITE_P(Runtime, EngineTest,
                         testing::Values(EngineCase{"gdn_fp32", "qwen3_5_tied", {}},
                                         EngineCase{"gdn_fp16", "qwen3_5_bf16", {}},
                                         EngineCase{"mamba2_fp32", "nemotron_h_pattern", {}},
                                         EngineCase{"mamba2_fp16", "nemotron_h_bf16", {}},
                                         EngineCase{"experts", "nemotron_h_latent", {}},
                                         EngineCase{"gdn_moe", "kernels_qwen3_5_moe", {}},
                                         EngineCase{"mamba2_moe", "kernels_nemotron_h_moe",
                                                    DType::kF32},
                                         EngineCase{"gdn_fp8", "kernels_qwen3_5_moe_fp8", {}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
