// The drafting head against its formulas in double, and against itself: whatever windows fed it,
// the same drafts to the bit.
#include <algorithm>
#include <cmath>
#include <deque>

#include "edited_model.h"
#include "engine.h"
#include "mtp_reference.h"
#include "testing.h"

namespace replayssm {
namespace {

std::string demo_gdn() { return std::string(REPLAYSSM_SOURCE_DIR) + "/models/demo-gdn"; }

// A fixture with a head: its layers' own weights, changed, and fc and norms beside them.
class ModelWithHead {
 public:
  ModelWithHead(const std::string& fixture, const std::string& config,
                const std::vector<std::pair<std::string, std::string>>& layers,
                const std::vector<std::pair<std::string, std::vector<int64_t>>>& more)
      : model_(fixture) {
    model_.config().insert(model_.config().find('{') + 1, config);
    const auto tensors = model_.tensors();
    for (const auto& [from, to] : layers) {
      for (const auto& [name, tensor] : tensors) {
        if (!name.starts_with(from)) continue;
        int64_t n = 1;
        for (const int64_t d : tensor.shape) n *= d;
        const auto* data = static_cast<const float*>(tensor.data);
        std::vector<float> changed(data, data + n);
        for (float& v : changed) v *= 1 + 0.5f * next();
        add(to + name.substr(from.size()), tensor.shape, std::move(changed));
      }
    }
    for (const auto& [name, shape] : more) {
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      std::vector<float> values(static_cast<size_t>(n));
      const float scale = shape.size() == 1 ? 0.5f : 2 / std::sqrt(static_cast<float>(shape[1]));
      for (float& v : values) v = (shape.size() == 1 ? 0.7f : 0.0f) + scale * next();
      add(name, shape, std::move(values));
    }
  }
  EditedModel& edited() { return model_; }
  const std::string& folder() { return model_.write(); }

 private:
  float next() {  // in [-1, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) / 2147483648.0f;
  }
  void add(const std::string& name, const std::vector<int64_t>& shape, std::vector<float> values) {
    values_.push_back(std::move(values));
    model_.tensors()[name] = {name, FileDType::kF32, shape, values_.back().data()};
  }

  EditedModel model_;
  std::deque<std::vector<float>> values_;
  uint64_t state_ = 1;
};

ModelWithHead qwen(const std::string& fixture, const std::string& layer, int64_t hidden) {
  return {fixture,
          "\"mtp_num_hidden_layers\": 1,",
          {{layer, "mtp.layers.0."}},
          {{"mtp.fc.weight", {hidden, 2 * hidden}},
           {"mtp.pre_fc_norm_embedding.weight", {hidden}},
           {"mtp.pre_fc_norm_hidden.weight", {hidden}},
           {"mtp.norm.weight", {hidden}}}};
}

ModelWithHead nemotron(const std::string& fixture, int64_t hidden) {
  return {fixture,
          "\"mtp_hybrid_override_pattern\": \"*E\",",
          {{"backbone.layers.2.", "mtp.layers.0."}, {"backbone.layers.1.", "mtp.layers.1."}},
          {{"mtp.layers.0.eh_proj.weight", {hidden, 2 * hidden}},
           {"mtp.layers.0.enorm.weight", {hidden}},
           {"mtp.layers.0.hnorm.weight", {hidden}},
           {"mtp.layers.1.final_layernorm.weight", {hidden}}}};
}

ModelOptions with_head() {
  ModelOptions options;
  options.mtp = true;
  options.activation = options.checkpoint = options.ring = DType::kF32;
  return options;
}

std::vector<int32_t> some_text(size_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>((i * i * 7 + 13 * i + 3) % static_cast<size_t>(vocab)));
  }
  return ids;
}

double relative_error(const std::vector<float>& got, const Doubles& want) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const double e = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(e <= error)) error = e;  // a NaN stays
  }
  return error / largest;
}

// Feeds ids[n, end) to a sequence: in sweeps of `size`, or in steps of it of which the last token
// of every other one is a draft that is rejected.
void feed(Engine& engine, Sequence& sequence, const std::vector<int32_t>& ids, int64_t end,
          int64_t size, Phase phase) {
  while (sequence.state.n < end) {
    const int64_t n = sequence.state.n, count = std::min(size, end - n);
    Window window{&sequence, {ids.begin() + n, ids.begin() + n + count}, phase};
    if (phase == Phase::kStep && count > 1 && n % 2 == 0) {
      window.tokens.back() = (window.tokens.back() + 1) % 17;
      window.advance = count - 1;
    }
    engine.run({window});
  }
}

// Logits of a chain of `depth` drafts, from ids[n] on, each the first choice.
std::vector<std::vector<float>> chain(Engine& engine, const Sequence& sequence, int32_t token,
                                      int depth) {
  std::vector<std::vector<float>> out;
  DraftRow row{token, sequence.state.n, sequence.pages.data(), sequence.state.ring_slot, -1};
  for (int i = 0; i < depth; ++i) {
    out.push_back(engine.draft({row}));
    row.token = static_cast<int32_t>(std::ranges::max_element(out.back()) - out.back().begin());
    ++row.position;
    row.from = 0;
  }
  return out;
}

// Drafts of a fifth order at a few places of a text, and the hidden states that they come from.
void expect_as_reference(const std::string& folder) {
  SCOPED_TRACE(folder);
  Engine engine(folder, with_head());
  const auto ids = some_text(70, std::min<int64_t>(engine.model().spec().vocab, 4000));
  Sequence sequence = engine.sequence(1);
  MtpReference reference(folder);
  std::vector<Doubles> hidden;
  for (const int64_t stop : {1, 2, 17, 40, 69}) {
    while (sequence.state.n < stop) {
      const int64_t n = sequence.state.n, count = std::min<int64_t>(n % 3 + 1, stop - n);
      const auto logits = engine.run({{&sequence, {ids.begin() + n, ids.begin() + n + count}}});
      for (int64_t t = n; t < n + count; ++t) {
        const auto* row = reinterpret_cast<const float*>(
            engine.state().parts.hidden(sequence.state.ring_slot, t).data);
        hidden.emplace_back(row, row + engine.model().spec().hidden);
        const auto vocab = engine.model().spec().vocab;
        const auto* at = logits.data() + (t - n) * vocab;
        // After the final norm: the head makes the model's own logits of it.
        EXPECT_LT(relative_error({at, at + vocab}, reference.head(hidden.back())), 1e-5);
        if (t > 0) {
          reference.next(t, ids[static_cast<size_t>(t)], hidden[static_cast<size_t>(t - 1)]);
        }
      }
    }
    const auto got = chain(engine, sequence, ids[static_cast<size_t>(stop)], 5);
    Doubles before = hidden.back();
    int32_t token = ids[static_cast<size_t>(stop)];
    for (int64_t i = 0; i < 5; ++i) {
      const auto want = reference.next(stop + i, token, before);
      const auto& logits = got[static_cast<size_t>(i)];
      EXPECT_LT(relative_error(logits, want.logits), 1e-5) << "at " << stop << ", draft " << i;
      before = want.m;
      token = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
  }
}

TEST(Mtp, DraftsAreThoseOfTheFormulas) {
  expect_as_reference(demo_gdn());
  expect_as_reference(qwen("qwen3_5_tied", "model.layers.3.", 40).folder());
  expect_as_reference(qwen("qwen3_5_moe", "model.layers.1.", 40).folder());
  expect_as_reference(qwen("qwen3_next", "model.layers.2.", 40).folder());
  expect_as_reference(nemotron("nemotron_h_moe", 64).folder());
  expect_as_reference(nemotron("nemotron_h_latent", 64).folder());
}

// As users run demo-gdn: bf16 activations and cache.
TEST(Mtp, WhateverFedItTheDraftsAreTheSameBits) {
  ModelOptions options;
  options.mtp = true;
  ModelWithHead latent = nemotron("nemotron_h_latent", 64);
  for (const std::string& folder : {demo_gdn(), latent.folder()}) {
    Engine engine(folder, options);
    const auto ids = some_text(68, std::min<int64_t>(engine.model().spec().vocab, 4000));
    for (const int64_t n : {1, 16, 33, 67}) {
      SCOPED_TRACE(testing::Message() << folder << " to " << n);
      const int32_t last = ids[static_cast<size_t>(n)];
      Sequence whole = engine.sequence(0);
      feed(engine, whole, ids, n, n, Phase::kSweep);
      const auto want = chain(engine, whole, last, 5);
      // Again, over what drafting wrote.
      EXPECT_EQ(chain(engine, whole, last, 5), want);
      for (const int64_t chunk : {1, 3, 16, 17}) {
        Sequence other = engine.sequence(1);
        feed(engine, other, ids, n, chunk, Phase::kSweep);
        EXPECT_EQ(chain(engine, other, last, 5), want) << "chunks of " << chunk;
      }
      for (const int64_t window : {1, 2, 5, 8}) {
        Sequence other = engine.sequence(2);
        for (int64_t at = 1; at <= n; at += 3) {
          feed(engine, other, ids, at, window, Phase::kStep);
          chain(engine, other, ids[static_cast<size_t>(at)], 3);
        }
        feed(engine, other, ids, n, window, Phase::kStep);
        EXPECT_EQ(chain(engine, other, last, 5), want) << "windows of " << window;
      }
      // Beside another sequence, whose rows come first.
      Sequence other = engine.sequence(3);
      feed(engine, other, ids, 5, 5, Phase::kSweep);
      const auto both = engine.draft({{ids[5], 5, other.pages.data(), other.state.ring_slot, -1},
                                      {last, n, whole.pages.data(), whole.state.ring_slot, -1}});
      EXPECT_EQ(std::vector<float>(both.end() - std::ssize(want[0]), both.end()), want[0]);
    }
  }
}

TEST(Mtp, TheModelIsTheSameBesideItsHead) {
  ModelOptions options;
  const auto ids = some_text(50, 4000);
  Engine plain(demo_gdn(), options);
  const auto want = plain.logits(ids, 20, 4);
  options.mtp = true;
  EXPECT_EQ(Engine(demo_gdn(), options).logits(ids, 20, 4), want);
}

TEST(Mtp, MemoryIsCounted) {
  ModelOptions options;
  const auto plain = Model::load(demo_gdn(), options);
  options.mtp = true;
  const auto model = Model::load(demo_gdn(), options);
  EXPECT_EQ(plain->attention().size(), 2u);
  EXPECT_EQ(model->attention().size(), 3u);
  EXPECT_EQ(model->n_target_attention(), 2u);
  HostArena memory, plain_memory;
  const LoadedWeightsCpu loaded = load_weights_cpu(*model, memory);
  EXPECT_EQ(loaded.bytes, weight_bytes_cpu(*model));
  EXPECT_TRUE(loaded.skipped.empty());
  const LoadedWeightsCpu without = load_weights_cpu(*plain, plain_memory);
  EXPECT_EQ(without.skipped.size(), 15u);
  EXPECT_EQ(loaded.n_parameters - without.n_parameters, 689536);
  const ModelMemory m = memory_of(plan_layers_cpu(*model, best_isa()).sizes),
                    p = memory_of(plan_layers_cpu(*plain, best_isa()).sizes);
  EXPECT_EQ(m.kv_page, p.kv_page / 2 * 3);
  EXPECT_EQ(m.conv_rows - p.conv_rows, 2 * 256);
  EXPECT_EQ(m.conv_slot - p.conv_slot, 2 * 256 * 9);
}

TEST(Mtp, RefusesHeadsThatAreNotThere) {
  ModelOptions options;
  options.mtp = true;
  const auto load = [&](const std::string& folder) {
    HostArena memory;
    load_weights_cpu(*Model::load(folder, options), memory);
  };
  expect_refusal({fixture("qwen3_5_tied"), "no multi-token-prediction head"},
                 [&] { load(fixture("qwen3_5_tied")); });
  // Named in the configuration, not in the files.
  ModelWithHead none = qwen("qwen3_5_tied", "model.layers.3.", 40);
  none.edited().tensors().erase("mtp.fc.weight");
  expect_refusal({"no multi-token-prediction head"}, [&] { load(none.folder()); });
  for (const char* name : {"mtp.norm.weight", "mtp.layers.0.self_attn.k_norm.weight"}) {
    ModelWithHead lacking = qwen("qwen3_5_tied", "model.layers.3.", 40);
    lacking.edited().tensors().erase(name);
    expect_refusal({"model.safetensors", name}, [&] { load(lacking.folder()); });
  }
  ModelWithHead more = qwen("qwen3_5_tied", "model.layers.3.", 40);
  const float value = 1;
  more.edited().tensors()["mtp.extra.weight"] = {"mtp.extra.weight", FileDType::kF32, {1}, &value};
  expect_refusal({"'mtp.extra.weight'", "no place"}, [&] { load(more.folder()); });
}

// Published files keep the text model under "model.language_model." and the head beside it.
TEST(Mtp, IsFoundBesideAWrappedModel) {
  ModelWithHead model = qwen("qwen3_5_tied", "model.layers.3.", 40);
  const auto want = [&] {
    Engine engine(model.folder(), with_head());
    Sequence s = engine.sequence(0);
    feed(engine, s, some_text(9, 100), 8, 8, Phase::kSweep);
    return chain(engine, s, 5, 2);
  }();
  auto& tensors = model.edited().tensors();
  std::map<std::string, TensorToWrite> renamed;
  for (const auto& [name, tensor] : tensors) {
    const bool inside = name.starts_with("model.");
    const std::string to = inside ? "model.language_model." + name.substr(6) : name;
    renamed[to] = tensor;
    renamed[to].name = to;
  }
  tensors = renamed;
  Engine engine(model.folder(), with_head());
  Sequence s = engine.sequence(0);
  feed(engine, s, some_text(9, 100), 8, 8, Phase::kSweep);
  EXPECT_EQ(chain(engine, s, 5, 2), want);
}

}  // namespace
}  // namespace replayssm
