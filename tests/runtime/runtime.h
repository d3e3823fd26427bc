// Shared by the runtime tests: a model with its runner, texts, and scripts whose accepts are known.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../model/testing.h"
#include "core/thread_pool.h"
#include "runtime/generate.h"
#include "runtime/logits.h"
#include "test_device.h"

namespace replayssm {

constexpr int32_t kVocab = 120;  // of every fixture

// A fixture in one choice of types; those absent are the model's own.
struct Types {
  const char* fixture;
  std::optional<DType> activation, ring, checkpoint;
};

inline const std::vector<Types>& all_types() {
  static const std::vector<Types> types = {
      {"qwen3_5_tied", {}, {}, {}},
      {"qwen3_5_bf16", {}, {}, {}},
      {"qwen3_5_bf16", {}, DType::kBF16, DType::kI8},
      {"qwen3_5_untied", {}, {}, DType::kBF16},
      {"nemotron_h_pattern", {}, {}, {}},
      {"nemotron_h_bf16", {}, {}, {}},
      {"nemotron_h_bf16", {}, DType::kF16, DType::kI8},
  };
  return types;
}

// And with shapes that the kernels of a GPU take.
inline std::vector<Types> types_of_devices() {
  std::vector<Types> out = all_types();
  out.push_back({"kernels_qwen3_5_moe", {}, {}, {}});
  out.push_back({"kernels_qwen3_next", {}, {}, DType::kI8});
  out.push_back({"kernels_nemotron_h_moe", {}, {}, DType::kF32});
  out.push_back({"kernels_nemotron_h_latent", {}, {}, DType::kBF16});
  return out;
}

inline std::string types_name(const Types& types) {
  std::string out = types.fixture;
  for (const auto& dtype : {types.activation, types.ring, types.checkpoint}) {
    if (dtype) out += std::string("_") + dtype_name(*dtype);
  }
  return out;
}

inline ModelOptions options_of(const Types& types, int32_t interval, int32_t max_window) {
  ModelOptions options;
  options.activation = types.activation;
  options.ring = types.ring;
  options.checkpoint = types.checkpoint;
  options.interval = interval;
  options.max_window = max_window;
  return options;
}

// A model, its threads and a runner.
class Rig {
 public:
  Rig(const std::string& folder, const ModelOptions& options, int n_threads = 1,
      RunnerLimits limits = {1, 512, 256, 256}, const OpenDevice& open = open_device)
      : pool_(n_threads),
        context_(pool_),
        device_(open(context_)),
        model_(Model::load(folder, options)),
        runner_(model_, *device_, limits),
        sampler_(context_, model_->spec().vocab) {}
  Rig(const Types& types, int32_t interval, int32_t max_window, int n_threads = 1)
      : Rig(fixture(types.fixture), options_of(types, interval, max_window), n_threads) {}

  const ops::Context& context() const { return context_; }
  const Device& device() const { return *device_; }
  const std::shared_ptr<const Model>& model() const { return model_; }
  Runner& runner() { return runner_; }
  ops::Sampler& sampler() { return sampler_; }

  std::unique_ptr<Drafter> model_drafter(const std::shared_ptr<const Model>& model,
                                         const ops::SamplerParams& sampling) const {
    return make_model_drafter(model, *device_, context_, runner_.limits().max_positions, sampling);
  }

 private:
  ThreadPool pool_;
  ops::Context context_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<const Model> model_;
  Runner runner_;
  ops::Sampler sampler_;
};

struct Text {
  std::vector<int32_t> ids;
  GenerateStats stats;
};

inline Text text_of(Rig& engine, Drafter* drafter, const std::vector<int32_t>& prompt,
                    const GenerateParams& params) {
  Text out;
  out.stats = generate(engine.runner(), engine.sampler(), drafter, prompt, params,
                       [&](int32_t id) { out.ids.push_back(id); });
  EXPECT_EQ(out.stats.new_tokens, std::ssize(out.ids));
  EXPECT_EQ(out.stats.prompt_tokens, std::ssize(prompt));
  EXPECT_LE(out.stats.accepted, out.stats.drafted);
  return out;
}

inline std::vector<int32_t> random_ids(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> out(n);
  for (auto& id : out) id = static_cast<int32_t>(rng() % kVocab);
  return out;
}

// What a script proposes in a step: `right` ids of the text, then wrong ones.
struct Proposal {
  int64_t right = 0;
  int64_t size = 0;  // of them all
};

// Plays a script by hand: its JSON, and the counters that generate() must give.
struct Script {
  std::string json;
  int64_t steps = 0, drafted = 0, accepted = 0;
};

// `text` is what the model writes after the prompt; proposals come in turn, then none. K is the
// cut.
inline Script script_of(const std::vector<int32_t>& text, const std::vector<Proposal>& proposals,
                        int64_t k) {
  Script out;
  nlohmann::json steps = nlohmann::json::array();
  const int64_t size = std::ssize(text);
  int64_t known = 1;  // the prefill gives the first token
  while (known < size) {
    ++out.steps;
    const Proposal p = out.steps <= std::ssize(proposals)
                           ? proposals[static_cast<size_t>(out.steps - 1)]
                           : Proposal{};
    const int64_t most = std::min(k, size - known - 1);
    // The last step has no draft: the drafter is not asked.
    if (most > 0 && out.steps <= std::ssize(proposals)) {
      nlohmann::json ids = nlohmann::json::array();
      for (int64_t i = 0; i < p.size; ++i) {
        const int64_t at = std::min(known + i, size - 1);
        ids.push_back((text[static_cast<size_t>(at)] + (i < p.right ? 0 : 1)) % kVocab);
      }
      steps.push_back(ids);
    }
    const int64_t accepted = std::min(p.right, most);
    out.drafted += std::min(p.size, most);
    out.accepted += accepted;
    known += accepted + 1;
  }
  out.json = steps.dump();
  return out;
}

// A script drafter and the file it came from.
class ScriptFile {
 public:
  explicit ScriptFile(const std::string& json) { write_text(path(), json); }
  std::string path() const { return folder_.file("script.json"); }
  std::unique_ptr<Drafter> drafter() const { return make_script_drafter(path(), kVocab); }

 private:
  TempFolder folder_;
};

}  // namespace replayssm
