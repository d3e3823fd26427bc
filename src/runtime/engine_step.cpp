#include <algorithm>

#include "core/error.h"
#include "runtime/checksum.h"
#include "runtime/engine_impl.h"

namespace replayssm {
namespace {

constexpr size_t kRemembered = 256;  // finished requests that save_session may name

}  // namespace

LiveRequest::LiveRequest(GenerationRequest request_in, std::shared_ptr<Listener> listener_in)
    : request(std::move(request_in)), listener(std::move(listener_in)) {
  for (int32_t i = 0; i < request.n; ++i) parts.emplace_back(request, i);
  usage.prompt_tokens = prompt_length();
}

bool LiveRequest::ended() const {
  return std::ranges::all_of(parts, [](const Part& part) { return part.ended.has_value(); });
}

void EngineImpl::act(std::span<const Action> actions) {
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::kEvict) {
      keep_below(action.gone);
    } else {
      executor_.act(action);
    }
  }
}

bool EngineImpl::drafts_by_model(const GenerationRequest& r) const {
  const DraftMode mode = r.draft == DraftMode::kDefault ? options_.draft : r.draft;
  return r.scripted_drafts.empty() && mode == DraftMode::kModel;
}

// A preempted text's draft state goes with its memory.
void EngineImpl::drop_waiting_drafters() {
  if (scheduler_.n_preemptions() == scheduled_preemptions_) return;
  scheduled_preemptions_ = scheduler_.n_preemptions();
  for (const auto& [key, s] : scheduler_.sequences()) {
    if (s.stage != Sequence::Stage::kWaiting) continue;
    live_.at(key.request).parts[static_cast<size_t>(key.choice)].draft_text.reset();
  }
}

// The ids of each row's window: known tokens, and drafts where the plan leaves room for them.
void EngineImpl::propose(const StepPlan& plan) {
  fed_.resize(plan.rows.size());
  std::vector<ModelDrafts::Job> jobs;
  const auto part_of = [this](const StepRow& row) -> LiveRequest::Part& {
    return live_.at(row.key.request).parts[static_cast<size_t>(row.key.choice)];
  };
  const auto take = [&](size_t i, const std::vector<int32_t>& proposed) {
    const auto drafts = part_of(plan.rows[i]).choice.possible(proposed);
    fed_[i].insert(fed_[i].end(), drafts.begin(), drafts.end());
    live_.at(plan.rows[i].key.request).usage.drafted += std::ssize(drafts);
  };
  std::vector<size_t> job_rows;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const auto& tokens = scheduler_.find(row.key)->spec.tokens;
    const auto first = tokens.begin() + row.row.start;
    fed_[i].assign(first, first + row.row.n_tokens);
    if (row.max_drafts == 0) continue;
    LiveRequest::Part& part = part_of(row);
    const GenerationRequest& request = live_.at(row.key.request).request;
    if (drafts_by_model(request)) {
      if (part.draft_text == nullptr) {
        part.draft_text = std::make_unique<ModelDrafts::Text>(*draft_model_);
      }
      jobs.push_back({part.draft_text.get(), tokens, row.max_drafts, part.choice.sampling()});
      job_rows.push_back(i);
      continue;
    }
    if (part.drafter == nullptr) {
      part.drafter = request.scripted_drafts.empty() ? make_ngram_drafter()
                                                     : make_script_drafter(request.scripted_drafts);
    }
    take(i, part.drafter->propose(tokens, row.max_drafts));
  }
  if (jobs.empty()) return;
  // A long prompt is read over several steps, beside what the others' texts have gained.
  const int64_t gained = std::ssize(jobs) * model_->options().max_window;
  draft_model_->propose(jobs, gained + ModelDrafts::kPrefillChunk);
  for (size_t j = 0; j < jobs.size(); ++j) take(job_rows[j], ModelDrafts::drafts(*jobs[j].text));
}

// What the device may draw: for one choice, by sampling alone.
void EngineImpl::plan_draws(const StepPlan& plan) {
  draws_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int64_t n_tokens = std::ssize(fed_[i]), n_logits = Executor::n_logits(row, n_tokens);
    if (n_logits == 0) continue;
    const Choice& choice =
        live_.at(row.key.request).parts[static_cast<size_t>(row.key.choice)].choice;
    DrawRow draw;
    draw.wanted = row.ends_text && !row.all_logits && choice.samples_only() &&
                  scheduler_.find(row.key)->spec.n_choices == 1;
    draw.params = choice.sampling();
    for (int64_t token = n_tokens - n_logits; token < n_tokens; ++token) {
      draw.position = row.row.start + token + 1;
      draws_.push_back(draw);
    }
  }
}

PassResult EngineImpl::after(PassResult pass, int64_t n_rows) const {
  return {pass.logits + n_rows * model_->spec().vocab,
          pass.drawn == nullptr ? nullptr : pass.drawn + n_rows};
}

void EngineImpl::note_admissions() {
  for (const auto& [key, s] : scheduler_.sequences()) {
    if (!s.admitted || key.choice != 0 || s.stage == Sequence::Stage::kClosing) continue;
    LiveRequest& live = live_.at(key.request);
    if (live.admitted > 0 && live.usage.cached_tokens == s.cached_tokens) continue;
    live.usage.cached_tokens = s.cached_tokens;
    live.usage.cache_note = s.cache_note;
    if (live.admitted > 0) continue;
    live.admitted = trace_.now();
    const std::lock_guard lock(mutex_);
    --n_waiting_;
  }
}

void EngineImpl::take_prompt_logprobs(LiveRequest& live, const StepRow& row, const float* logits) {
  // A preempted prompt comes by again.
  if (live.prompt_done) return;
  const int64_t vocab = model_->spec().vocab;
  for (int64_t i = 0; i < row.row.n_tokens; ++i, logits += vocab) {
    const int64_t position = row.row.start + i + 1;
    if (position >= live.prompt_length() || position != std::ssize(live.prompt_logprobs) + 1) {
      continue;
    }
    live.prompt_logprobs.push_back(logprob_of(draw_.context, {logits, static_cast<size_t>(vocab)},
                                              live.request.prompt[static_cast<size_t>(position)],
                                              live.request.prompt_logprobs));
  }
}

void EngineImpl::end_choice(LiveRequest& live, int32_t choice, FinishReason reason) {
  LiveRequest::Part& part = live.parts[static_cast<size_t>(choice)];
  part.ended = reason;
  part.drafter.reset();
  part.draft_text.reset();
}

// Draws what the window decides for one choice: the token after it, and while drafts stand, those
// after them.
RowResult::Choice EngineImpl::take_choice(LiveRequest& live, const StepRow& row, int32_t choice,
                                          std::span<const int32_t> fed, PassResult pass,
                                          RowResult& result) {
  const int64_t vocab = model_->spec().vocab;
  LiveRequest::Part& part = live.parts[static_cast<size_t>(choice)];
  const Sequence& sequence = *scheduler_.find(row.key);
  const int64_t length = sequence.length();
  const int64_t most = sequence.spec.max_length - length;
  RowResult::Choice out;
  const auto end = [&](FinishReason reason) {
    out.ended = true;
    end_choice(live, choice, reason);
  };
  std::vector<TokenEvent> events;
  int32_t stand = 0;
  if (most == 0) end(FinishReason::kLength);
  for (bool agrees = true; agrees && !out.ended; ++stand) {
    const int64_t position = length + std::ssize(events);
    const auto drawn =
        pass.drawn != nullptr
            ? part.choice.take(pass.drawn[stand], position)
            : part.choice.draw(draw_, {pass.logits + stand * vocab, static_cast<size_t>(vocab)},
                               position);
    if (drawn.status == Choice::Status::kToken) {
      agrees = stand + 1 < std::ssize(fed) && fed[static_cast<size_t>(stand + 1)] == drawn.token;
      events.push_back({choice, drawn.token, agrees, drawn.logprob});
      if (std::ssize(events) == most) end(FinishReason::kLength);
    } else if (drawn.status == Choice::Status::kStop) {
      end(FinishReason::kStopId);
    } else if (drawn.status == Choice::Status::kConstraintDone) {
      end(FinishReason::kConstraintDone);
    } else {
      live.error = drawn.error;
      end(FinishReason::kError);
    }
  }
  if (!events.empty()) {
    if (live.first_token == 0) live.first_token = trace_.now();
    const size_t kept = std::min(live.listener->tokens(events), events.size());
    if (kept < events.size()) {
      events.resize(kept);
      end(FinishReason::kStopId);
    }
  }
  for (const TokenEvent& event : events) {
    out.tokens.push_back(event.token);
    result.accepted += event.from_draft ? 1 : 0;
  }
  if (row.phase == Phase::kStep) {
    result.n_commit = std::min(std::max(stand, 1), static_cast<int32_t>(events.size()) + 1);
  }
  live.usage.new_tokens += std::ssize(events);
  return out;
}

// `pass` from this row's logits on; `drawn` only if they were all drawn.
RowResult EngineImpl::take_row(const StepRow& row, std::span<const int32_t> fed, PassResult pass) {
  RowResult result;
  result.n_tokens = static_cast<int32_t>(fed.size());
  result.n_commit = row.phase == Phase::kSweep ? result.n_tokens : 0;
  if (row.only_folds) return result;
  LiveRequest& live = live_.at(row.key.request);
  if (row.all_logits) take_prompt_logprobs(live, row, pass.logits);
  if (!row.ends_text) return result;
  if (!live.prompt_done) {
    live.prompt_done = true;
    if (live.request.prompt_logprobs >= 0) {
      live.listener->prompt_logprobs(std::move(live.prompt_logprobs));
    }
  }
  // A sweep's window stands; only what follows its last token is open.
  if (row.phase == Phase::kSweep) {
    pass = after(pass, Executor::n_logits(row, std::ssize(fed)) - 1);
    fed = fed.last(1);
  }
  const int32_t n_choices = scheduler_.find(row.key)->spec.n_choices;
  for (int32_t i = 0; i < n_choices; ++i) {
    result.choices.push_back(take_choice(live, row, row.key.choice + i, fed, pass, result));
  }
  live.usage.accepted += result.accepted;
  const Sequence& sequence = *scheduler_.find(row.key);
  for (int32_t i = 0; i < n_choices; ++i) {
    const int32_t choice = row.key.choice + i;
    if (!result.choices[static_cast<size_t>(i)].ended) continue;
    just_ended_.push_back({row.key.request, choice});
    if (i == 0) live.usage.preemptions += sequence.preemptions;
    if (choice != 0) continue;
    live.first_text = sequence.spec.tokens;
    const auto& last = result.choices[0].tokens;
    live.first_text.insert(live.first_text.end(), last.begin(), last.end());
    if (options_.test_hooks) live.first_hash = hash_after(row, result);
  }
  return result;
}

// Of the text's state once this row is committed.
std::string EngineImpl::hash_after(const StepRow& row, const RowResult& result) {
  SequenceState state = scheduler_.find(row.key)->state;
  Row fed = row.row;
  fed.n_tokens = result.n_tokens;
  const Status status = row.phase == Phase::kSweep
                            ? commit_sweep(model_->grid(), fed, state)
                            : commit_step(model_->grid(), fed, result.n_commit, state);
  REPLAYSSM_CHECK(status == Status::kOk, "commit of ", result.n_commit);
  return hex(executor_.state_hash(state, row.pages, budget_.pools.checkpoint_slots));
}

void EngineImpl::step() {
  StepPlan plan = scheduler_.plan();
  note_admissions();
  drop_waiting_drafters();
  act(plan.actions);
  if (plan.rows.empty()) return;
  const double start = trace_.now();
  propose(plan);
  const double drafted = trace_.now();
  plan_draws(plan);
  PassResult pass = executor_.run(plan.rows, fed_, draws_);
  const double passed = trace_.now();
  StepResult result;
  result.draft_seconds = drafted - start;
  result.seconds = passed - drafted;
  size_t n_taken = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int64_t n_logits = Executor::n_logits(plan.rows[i], std::ssize(fed_[i]));
    const bool drawn = n_logits > 0 && draws_[n_taken].wanted;
    result.rows.push_back(
        take_row(plan.rows[i], fed_[i], {pass.logits, drawn ? pass.drawn : nullptr}));
    n_taken += static_cast<size_t>(n_logits);
    pass = after(pass, n_logits);
  }
  scheduler_.commit(plan, result);
  ++counts_.steps;
  report_ended();
  if (trace_.on()) trace_step(plan, start, drafted, passed);
}

void EngineImpl::trace_step(const StepPlan& plan, double start, double drafted, double passed) {
  int64_t n_tokens = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) n_tokens += std::ssize(fed_[i]);
  const double end = trace_.now();
  trace_.span("step", 0, start, end,
              concat("{\"rows\": ", plan.rows.size(), ", \"tokens\": ", n_tokens,
                     ", \"requests\": ", live_.size(), "}"));
  trace_.span("draft", 0, start, drafted, "{}");
  trace_.span("pass", 0, drafted, passed, "{}");
  trace_.span("sample", 0, passed, end, "{}");
}

// Tells the listeners once the scheduler has taken the step: what ended is free by then.
void EngineImpl::report_ended() {
  const std::vector<SequenceKey> ended = std::exchange(just_ended_, {});
  for (const SequenceKey& key : ended) {
    LiveRequest& live = live_.at(key.request);
    live.listener->choice_finished(key.choice, *live.parts[static_cast<size_t>(key.choice)].ended);
  }
  for (const SequenceKey& key : ended) {
    const auto found = live_.find(key.request);
    if (found != live_.end() && found->second.ended()) report_finished(key.request);
  }
}

void EngineImpl::report_finished(RequestId id) {
  LiveRequest& live = live_.at(id);
  const double now = trace_.now();
  RequestUsage& usage = live.usage;
  const bool waited = live.admitted == 0;
  const double admitted = waited ? now : live.admitted;
  const double first = live.first_token > 0 ? live.first_token : now;
  usage.queue_seconds = admitted - live.submitted;
  usage.prefill_seconds = first - admitted;
  usage.decode_seconds = now - first;
  counts_.prompt_tokens += usage.prompt_tokens;
  counts_.cached_tokens += usage.cached_tokens;
  counts_.new_tokens += usage.new_tokens;
  counts_.drafted += usage.drafted;
  counts_.accepted += usage.accepted;
  const auto cancelled = [](const LiveRequest::Part& part) {
    return part.ended == FinishReason::kCancelled;
  };
  if (std::ranges::any_of(live.parts, cancelled)) ++counts_.cancelled;
  trace_.span(live.request.name.empty() ? concat("request ", id) : live.request.name,
              static_cast<int64_t>(id), live.submitted, now,
              concat("{\"prompt\": ", usage.prompt_tokens, ", \"cached\": ", usage.cached_tokens,
                     ", \"new\": ", usage.new_tokens, "}"));
  trace_.flush();
  finished_.push_back({id, std::move(live.first_text), std::move(live.first_hash)});
  if (finished_.size() > kRemembered) finished_.pop_front();
  const auto listener = std::move(live.listener);
  const RequestUsage last = std::move(usage);
  const std::string error = std::move(live.error);
  live_.erase(id);
  {
    const std::lock_guard lock(mutex_);
    --n_live_;
    if (waited) --n_waiting_;
  }
  publish_stats();
  listener->finished(last, error);
  const std::lock_guard lock(mutex_);
  --n_unreported_;
}

void EngineImpl::cancel_now(RequestId id) {
  const auto found = live_.find(id);
  if (found == live_.end()) return;
  LiveRequest& live = found->second;
  for (int32_t i = 0; i < live.request.n; ++i) {
    if (live.parts[static_cast<size_t>(i)].ended) continue;
    if (const Sequence* sequence = scheduler_.find({id, i})) {
      live.usage.preemptions += sequence->preemptions;
      scheduler_.remove({id, i});
    }
    end_choice(live, i, FinishReason::kCancelled);
    just_ended_.push_back({id, i});
  }
  report_ended();
}

void EngineImpl::publish_stats() {
  EngineStats stats = counts_;
  stats.slots = scheduler_.slots().size();
  stats.slots_free = scheduler_.slots().n_free();
  stats.rings = scheduler_.rings().size();
  stats.rings_free = scheduler_.rings().n_free();
  stats.pages = scheduler_.pages().size();
  stats.pages_free = scheduler_.pages().n_free();
  stats.snapshots = scheduler_.cache().n_snapshots();
  stats.snapshot_pages = scheduler_.cache().n_pages();
  stats.snapshot_bytes = stats.snapshots * scheduler_.options().slot_bytes +
                         stats.snapshot_pages * scheduler_.options().page_bytes;
  if (host_tier_) {
    stats.host_snapshots = std::ssize(host_tier_->all());
    stats.host_snapshot_bytes = host_tier_->bytes();
  }
  stats.preemptions = scheduler_.n_preemptions();
  stats.evicted = scheduler_.cache().n_evicted();
  if (tier_) stats.refused_corrupt = tier_->n_refused();
  const StateTraffic& traffic = executor_.traffic();
  stats.state_bytes_moved = traffic.read + traffic.written;
  stats.state_bytes_plain = traffic.plain;
  const std::lock_guard lock(mutex_);
  stats.queued = n_waiting_;
  stats.running = n_live_ - n_waiting_;
  stats_ = stats;
}

}  // namespace replayssm
