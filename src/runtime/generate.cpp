#include "runtime/generate.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace replayssm {
namespace {

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

StateTraffic since(const StateTraffic& now, const StateTraffic& then) {
  return {now.read - then.read, now.written - then.written, now.plain - then.plain};
}

int32_t draw(ops::Sampler& sampler, const float* logits, const ops::SamplerParams& sampling,
             int64_t position) {
  const auto drawn = sampler.sample(logits, sampling, position);
  if (drawn.status == ops::SampleStatus::kNan) fail("the model gave NaN logits at ", position);
  if (drawn.status == ops::SampleStatus::kEmpty) fail("every logit is -inf at ", position);
  return drawn.token;
}

}  // namespace

GenerateStats generate(Runner& runner, ops::Sampler& sampler, Drafter* drafter,
                       std::span<const int32_t> prompt, const GenerateParams& params,
                       const std::function<void(int32_t)>& on_token) {
  const int64_t vocab = runner.model().spec().vocab;
  const int64_t max_positions = runner.limits().max_positions;
  check_text("the prompt", prompt, vocab, max_positions);
  const int64_t room = max_positions - static_cast<int64_t>(prompt.size());
  if (room == 0 && params.max_new_tokens > 0) {
    fail("the prompt has ", prompt.size(), " tokens and fills the context of ", max_positions,
         ": no room for text");
  }
  const int64_t wanted = std::min(params.max_new_tokens, room);

  GenerateStats stats;
  stats.prompt_tokens = static_cast<int64_t>(prompt.size());
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  const OpenSequence sequence(runner);
  const auto is_stop = [&](int32_t id) {
    return std::find(params.stop_ids.begin(), params.stop_ids.end(), id) != params.stop_ids.end();
  };
  // Takes a decided token; false when the text has ended.
  const auto take = [&](int32_t id) {
    if (is_stop(id)) return false;
    tokens.push_back(id);
    ++stats.new_tokens;
    on_token(id);
    return stats.new_tokens < wanted;
  };

  const double start = now_seconds();
  const float* logits = nullptr;
  for (size_t at = 0; at < prompt.size();) {
    const size_t count =
        std::min(prompt.size() - at, static_cast<size_t>(runner.limits().max_tokens));
    Window window;
    window.sequence = sequence.id();
    window.tokens = prompt.subspan(at, count);
    window.prefill = true;
    at += count;
    window.n_logits = at == prompt.size() ? 1 : 0;
    logits = runner.run({&window, 1});
  }
  const double decode_start = now_seconds();
  stats.prefill_seconds = decode_start - start;
  const StateTraffic traffic_start = runner.traffic();

  const int32_t max_drafts = std::min(params.draft_tokens, runner.model().options().max_window - 1);
  stats.drafted_by_depth.resize(static_cast<size_t>(max_drafts));
  stats.accepted_by_depth.resize(static_cast<size_t>(max_drafts));
  bool more = wanted > 0 && take(draw(sampler, logits, params.sampling, stats.prompt_tokens));
  std::vector<int32_t> fed;
  while (more) {
    // No draft past the last token that is wanted.
    const int64_t left = wanted - stats.new_tokens;
    const int32_t k = static_cast<int32_t>(std::min<int64_t>(max_drafts, left - 1));
    fed.assign(1, tokens.back());
    if (k > 0 && (params.mtp || drafter != nullptr)) {
      const std::vector<int32_t> drafts =
          params.mtp ? runner.draft(sequence.id(), tokens.back(), k, sampler, params.sampling)
                     : drafter->propose(tokens, k);
      fed.insert(fed.end(), drafts.begin(), drafts.end());
    }
    Window window;
    window.sequence = sequence.id();
    window.tokens = fed;
    window.n_logits = static_cast<int32_t>(fed.size());
    logits = runner.run({&window, 1});
    ++stats.steps;
    stats.drafted += static_cast<int64_t>(fed.size()) - 1;
    const int64_t accepted_before = stats.accepted;
    size_t n_committed = 0;
    for (bool agrees = true; agrees && more;) {
      const int32_t id = draw(sampler, logits + static_cast<int64_t>(n_committed) * vocab,
                              params.sampling, static_cast<int64_t>(tokens.size()));
      ++n_committed;
      agrees = n_committed < fed.size() && fed[n_committed] == id;
      if (agrees) ++stats.accepted;
      more = take(id);
    }
    for (size_t i = 0; i + 1 < fed.size(); ++i) {
      ++stats.drafted_by_depth[i];
      if (static_cast<int64_t>(i) < stats.accepted - accepted_before) ++stats.accepted_by_depth[i];
    }
    runner.advance(sequence.id(), static_cast<int64_t>(n_committed));
  }
  stats.decode_seconds = now_seconds() - decode_start;
  stats.decode_traffic = since(runner.traffic(), traffic_start);
  return stats;
}

}  // namespace replayssm
