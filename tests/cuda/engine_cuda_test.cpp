// The serving engine on the device, in the exact mode: what a request answers depends on the
// request alone. NaN fills what is free.
#include <set>

#include "../runtime/engine.h"
#include "runtime/cuda/backend_cuda.h"
#include "runtime/cuda/step_shapes.h"

namespace replayssm {
namespace {

struct Way {
  const char* model;
  std::optional<DType> checkpoint;  // absent: the model's own
};

class CudaEngine : public ::testing::TestWithParam<Way> {
 protected:
  static ModelOptions model_options() {
    ModelOptions options;
    options.checkpoint = GetParam().checkpoint;
    options.max_window = 8;
    return options;
  }
  static EngineOptions engine_options() {
    EngineOptions options;
    options.memory_bytes = int64_t{600} << 20;
    options.max_positions = 1024;
    options.max_sequences = 8;
    options.chunk_tokens = 128;
    options.snapshot_interval = 64;
    return options;
  }
  GenerationRequest request(size_t n_prompt, int64_t n_new, uint64_t seed = 1) {
    const auto vocab = static_cast<int32_t>(bench_.model()->spec().vocab);
    GenerationRequest out = request_of(some_ids(n_prompt, seed, vocab), n_new);
    out.logprobs = 3;
    return out;
  }
  std::string hash_of(const Sent& sent) { return bench_.final_state(sent.id).hash; }

  Bench bench_{demo(GetParam().model), model_options(), engine_options()};
};

// Greedy and drawn, on the device and (with logprobs) on the host, by every drafter: the tokens,
// their logprobs and the state.
TEST_P(CudaEngine, DraftsChangeNothing) {
  bench_.options().draft_model = Model::load(demo("demo-draft"), model_options());
  bench_.options().draft_tokens = 7;
  bench_.options().adaptive_drafts = false;
  bench_.options().prefix_cache = false;
  bench_.restart();
  std::vector<std::vector<int32_t>> texts;
  for (const int way : {0, 1, 2, 3}) {
    GenerationRequest asked = request(90, 60);
    asked.logprobs = way % 2 == 0 ? 3 : -1;
    asked.sampling.temperature = way < 2 ? 0.0f : 0.8f;
    asked.sampling.seed = 5;
    const Sent want = bench_.ask(asked);
    texts.push_back(want.client->ids());
    for (const DraftMode mode : {DraftMode::kNgram, DraftMode::kModel}) {
      asked.draft = mode;
      const Sent drafted = bench_.ask(asked);
      EXPECT_EQ(drafted.client->answer(), want.client->answer());
      EXPECT_EQ(hash_of(drafted), hash_of(want));
      if (mode == DraftMode::kModel) {
        EXPECT_GT(drafted.client->usage().drafted, 0);
      }
    }
    // Right ones and wrong ones.
    const auto& ids = want.client->ids();
    for (size_t at = 1; at + 5 < ids.size(); at += 3) {
      std::vector<int32_t> drafts(ids.begin() + static_cast<ptrdiff_t>(at),
                                  ids.begin() + static_cast<ptrdiff_t>(at) + 5);
      if (at % 2 == 0) drafts[at % 5] = (drafts[at % 5] + 1) % 100;
      asked.scripted_drafts.push_back(drafts);
    }
    const Sent scripted = bench_.ask(asked);
    EXPECT_EQ(scripted.client->answer(), want.client->answer());
    EXPECT_EQ(hash_of(scripted), hash_of(want));
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[2], texts[3]);
  EXPECT_NE(texts[0], texts[2]);
}

// Alone in whole prompts, and eight at once in small chunks and with drafts.
TEST_P(CudaEngine, BatchAndChunksChangeNothing) {
  constexpr size_t kLengths[] = {1, 15, 16, 17, 130, 257, 400, 33};
  bench_.options().prefix_cache = false;
  bench_.options().chunk_tokens = 1024;
  bench_.restart();
  std::vector<Client::Answer> want;
  std::vector<std::string> hashes;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    const Sent sent = bench_.ask(request(kLengths[i], 40, i));
    want.push_back(sent.client->answer());
    hashes.push_back(hash_of(sent));
  }
  bench_.options().chunk_tokens = 64;
  bench_.options().draft = DraftMode::kNgram;
  bench_.options().draft_tokens = 5;
  bench_.restart();
  std::vector<Sent> sent;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    sent.push_back(bench_.send(request(kLengths[i], 40, i)));
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i].client->wait();
    EXPECT_EQ(sent[i].client->answer(), want[i]) << i;
    EXPECT_EQ(hash_of(sent[i]), hashes[i]) << i;
  }
  bench_.expect_quiet();
}

// A hit inside a text, choices that share a prompt, memory taken away, and files.
TEST_P(CudaEngine, WhatIsRestoredIsWhatWasComputed) {
  bench_.options().prefix_cache = false;
  bench_.restart();
  const GenerationRequest asked = request(300, 30);
  GenerationRequest longer = asked, edited = asked, forked = asked;
  longer.prompt.insert(longer.prompt.end(), {7, 8, 9, 10, 11});
  edited.prompt[290] = (edited.prompt[290] + 1) % 50;
  forked.n = 3;
  forked.sampling.temperature = 1;
  const std::vector<GenerationRequest> requests = {asked, longer, edited, forked};
  std::vector<std::map<int32_t, Client::Answer>> want;
  for (const auto& r : requests) want.push_back(bench_.ask(r).client->answers());

  const TempFolder folder;
  bench_.options().prefix_cache = true;
  bench_.options().cache_folder = folder.path();
  bench_.restart();
  bench_.ask(asked);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Sent warm = bench_.ask(requests[i]);
    EXPECT_EQ(warm.client->answers(), want[i]) << i;
    EXPECT_GE(warm.client->usage().cached_tokens, 256) << i;
  }
  auto client = std::make_shared<Client>();
  RequestId id = 0;
  client->on_tokens = [&, n = size_t{0}](std::span<const TokenEvent> events) mutable {
    n += events.size();
    if (n == 9 || n == 20) bench_.engine().preempt(id);
    return events.size();
  };
  EXPECT_FALSE(bench_.engine().submit(longer, client, &id).has_value());
  client->wait();
  EXPECT_EQ(client->answers(), want[1]);
  EXPECT_GT(client->usage().preemptions, 0);

  bench_.restart();
  const Sent again = bench_.ask(asked);
  EXPECT_EQ(again.client->answers(), want[0]);
  EXPECT_GE(again.client->usage().cached_tokens, 256);
  EXPECT_EQ(bench_.engine().stats().refused_corrupt, 0);
}

// Steps of any mix by their graphs, and again launch by launch: a pass that leaves a token's logits
// out has no graph. Tokens, logits and all memory.
TEST_P(CudaEngine, AGraphIsWhatItWasCapturedFrom) {
  constexpr int32_t kRows = 7, kPagesEach = 16, kWindow = 8;
  const Model& model = *bench_.model();
  PoolSizes sizes;
  sizes.checkpoint_slots = sizes.ring_slots = kRows + 1;
  sizes.kv_pages = kRows * kPagesEach;
  const ForwardLimits limits = {kRows * kWindow, kRows, kRows * kWindow, kPagesEach * ops::kKvPage};
  const auto graphs = bench_.device().make(model, sizes, limits);
  const auto launches = bench_.device().make(model, sizes, limits);
  const auto spans_of = [&](const Backend& backend) {
    std::vector<MemorySpan> out;
    const auto add = [&](const std::vector<MemorySpan>& spans) {
      out.insert(out.end(), spans.begin(), spans.end());
    };
    for (int32_t i = 0; i < sizes.ring_slots; ++i) add(backend.parts().checkpoint(i));
    for (int32_t i = 0; i < sizes.ring_slots; ++i) add(backend.parts().ring(i));
    for (int32_t i = 0; i < sizes.kv_pages; ++i) add(backend.parts().page(i));
    return out;
  };
  for (Backend* backend : {graphs.get(), launches.get()}) backend->poison(spans_of(*backend));

  std::mt19937_64 rng(3);
  const auto below = [&](size_t n) { return static_cast<int32_t>(rng() % n); };
  std::vector<SequenceState> states;
  std::vector<std::vector<int32_t>> pages(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    states.push_back({0, 0, kRows - i, i});
    for (int32_t p = 0; p < kPagesEach; ++p) {
      pages[static_cast<size_t>(i)].push_back(p * kRows + i);
    }
  }
  const int64_t vocab = model.spec().vocab;
  for (int step = 0; step < 60; ++step) {
    const int32_t most = step % 3 == 0 ? 1 : step % 3 == 1 ? 4 : kWindow;
    std::vector<ForwardRow> rows;
    std::vector<int32_t> tokens;
    std::vector<int64_t> logit_tokens;
    std::vector<DrawRow> draws;
    std::vector<size_t> used;
    for (size_t i = 0; i < kRows; ++i) {
      const SequenceState& s = states[i];
      if (s.n + kWindow > limits.max_positions || (below(3) == 0 && !used.empty())) continue;
      ForwardRow row;
      row.row = {s.n,        s.c, s.n, 0, std::ssize(tokens), s.checkpoint_slot, s.checkpoint_slot,
                 s.ring_slot};
      row.row.n_tokens = used.empty() ? most : below(static_cast<size_t>(most) + 1);
      row.pages = pages[i].data();
      for (int32_t t = 0; t < row.row.n_tokens; ++t) {
        logit_tokens.push_back(std::ssize(tokens));
        tokens.push_back(below(static_cast<size_t>(vocab)));
        draws.push_back({below(2) == 0, {0.8f, 20, 0.9f, 0.0f, 11}, s.n + t + 1});
      }
      rows.push_back(row);
      used.push_back(i);
    }
    if (tokens.empty()) break;
    const size_t n = tokens.size();
    const auto got = graphs->run({rows, tokens, logit_tokens}, draws);
    const auto want = launches->run({rows, tokens, std::span(logit_tokens).first(n - 1)},
                                    std::span(draws).first(n - 1));
    for (size_t i = 0; i + 1 < n; ++i) {
      if (draws[i].wanted) {
        ASSERT_EQ(got.drawn[i].token, want.drawn[i].token) << step << ": " << i << " of " << n;
        continue;
      }
      const float* const row = want.logits + static_cast<int64_t>(i) * vocab;
      ASSERT_TRUE(std::equal(row, row + vocab, got.logits + static_cast<int64_t>(i) * vocab))
          << step << ": " << i << " of " << n;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i].row;
      const int32_t stand = row.n_tokens == 0 ? 0 : 1 + below(static_cast<size_t>(row.n_tokens));
      ASSERT_EQ(commit_step(model.grid(), row, stand, states[used[i]]), Status::kOk);
    }
  }
  const auto bytes_of = [&](const Backend& backend) {
    const auto spans = spans_of(backend);
    int64_t n = 0;
    for (const MemorySpan& span : spans) n += span.bytes;
    std::vector<std::byte> out(static_cast<size_t>(n));
    backend.read(spans, out.data());
    return out;
  };
  EXPECT_TRUE(bytes_of(*graphs) == bytes_of(*launches));
}

TEST(StepShapes, EveryStepHasAShape) {
  for (const auto& [n_rows, max_window] : {std::pair{1, 1}, {5, 5}, {64, 4}, {100, 16}}) {
    ForwardLimits limits;
    limits.max_rows = n_rows;
    limits.max_logits = n_rows * max_window;
    limits.max_tokens = limits.max_logits + 512;
    limits.max_positions = 100000;
    const auto shapes = step_shapes(limits, max_window);
    const std::set<PassShape> all(shapes.begin(), shapes.end());
    EXPECT_EQ(all.size(), shapes.size());
    for (int32_t rows = 1; rows <= n_rows; ++rows) {
      for (int32_t window = 1; window <= max_window; ++window) {
        for (int64_t tokens = 1; tokens <= rows * window; tokens += 1 + tokens / 7) {
          for (const int64_t pages : {1, 256, 257, 6250}) {
            PassShape needs;
            needs.n_step = rows;
            needs.longest = window;
            needs.single = window == 1;
            needs.n_tokens = needs.n_logits = tokens;
            needs.n_pages = pages;
            const PassShape shape = step_shape(needs, limits, max_window);
            ASSERT_TRUE(all.contains(shape)) << rows << " rows of " << window;
            ASSERT_TRUE(shape.n_step >= rows && shape.n_step <= n_rows && shape.longest >= window &&
                        shape.n_tokens >= tokens && shape.n_tokens <= limits.max_tokens &&
                        shape.n_pages >= pages && shape.n_pages <= 6250)
                << rows << " rows of " << window << ", " << tokens << " tokens";
          }
        }
      }
    }
  }
}

// As long as both say the same.
TEST_P(CudaEngine, SaysWhatTheCpuSays) {
  const Sent cuda = bench_.ask(request(100, 24));
  Bench cpu_bench(demo(GetParam().model), model_options(), engine_options(), 1, cpu_device);
  const Sent cpu = cpu_bench.ask(request(100, 24));
  const auto &a = cuda.client->answer(), &b = cpu.client->answer();
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  double worst = 0;
  size_t same = 0;
  for (; same < a.ids.size() && (same == 0 || a.ids[same - 1] == b.ids[same - 1]); ++same) {
    worst =
        std::max(worst, std::abs(a.logprobs[same].top[0].second - b.logprobs[same].top[0].second));
  }
  EXPECT_LE(worst, 0.1);
  std::printf("%s: %.3f apart at most over %zu tokens\n", GetParam().model, worst, same);
}

TEST_P(CudaEngine, BudgetThatHoldsNothing) {
  bench_.options().memory_bytes = int64_t{20} << 20;
  EXPECT_THROW(bench_.restart(), Error);
}

INSTANTIATE_TEST_SUITE_P(Demo, CudaEngine,
                         ::testing::Values(Way{"demo-gdn", {}}, Way{"demo-gdn", DType::kI8},
                                           Way{"demo-mamba2", {}}, Way{"demo-mamba2", DType::kF32}),
                         [](const auto& info) {
                           const std::string model = info.param.model;
                           const auto checkpoint = info.param.checkpoint;
                           return (model == "demo-gdn" ? "gdn_" : "mamba2_") +
                                  std::string(checkpoint ? dtype_name(*checkpoint) : "default");
                         });

}  // namespace
}  // namespace replayssm
