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

bool EngineImpl::drafts_by(DraftMode mode, const GenerationRequest& r) const {
  return r.scripted_drafts.empty() &&
         mode == (r.draft == DraftMode::kDefault ? options_.draft : r.draft);
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

EngineImpl::Flight EngineImpl::make_flight(StepPlan plan) {
  Flight out;
  out.plan = std::move(plan);
  out.start = trace_.now();
  for (const StepRow& row : out.plan.rows) {
    const Sequence& s = *scheduler_.find(row.key);
    Flight::RowState& state = out.rows.emplace_back();
    state.length = s.length();
    state.max_new = s.spec.max_length - s.length();
  }
  return out;
}

// The ids of each row's window: known tokens, and drafts where the plan leaves room for them.
void EngineImpl::propose(Flight& flight) {
  const auto& rows = flight.plan.rows;
  flight.fed.resize(rows.size());
  std::vector<ModelDrafts::Job> jobs;
  const auto part_of = [this](const StepRow& row) -> LiveRequest::Part& {
    return live_.at(row.key.request).parts[static_cast<size_t>(row.key.choice)];
  };
  const auto take = [&](size_t i, const std::vector<int32_t>& proposed) {
    const auto drafts = part_of(rows[i]).choice.possible(proposed);
    flight.fed[i].insert(flight.fed[i].end(), drafts.begin(), drafts.end());
    flight.cost.drafted += std::ssize(drafts);
    live_.at(rows[i].key.request).usage.drafted += std::ssize(drafts);
  };
  std::vector<size_t> job_rows, mtp_rows;
  std::vector<MtpJob> mtp_jobs;
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    const auto& tokens = scheduler_.find(row.key)->spec.tokens;
    const auto first = tokens.begin() + row.row.start;
    flight.fed[i].assign(first, first + row.row.n_tokens);
    if (row.max_drafts == 0) continue;
    LiveRequest::Part& part = part_of(row);
    const GenerationRequest& request = live_.at(row.key.request).request;
    if (drafts_by(DraftMode::kMtp, request)) {
      mtp_jobs.push_back(
          {{flight.fed[i].back(), row.row.start, row.pages.data(), row.row.ring_slot},
           row.max_drafts,
           part.choice.sampling()});
      mtp_rows.push_back(i);
      continue;
    }
    if (drafts_by(DraftMode::kModel, request)) {
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
  if (!mtp_jobs.empty()) {
    executor_.draft(draw_.sampler, mtp_jobs);
    for (size_t j = 0; j < mtp_jobs.size(); ++j) take(mtp_rows[j], mtp_jobs[j].drafts);
  }
  if (jobs.empty()) return;
  // A long prompt is read over several steps, beside what the others' texts have gained.
  const int64_t gained = std::ssize(jobs) * model_->options().max_window;
  draft_model_->propose(jobs, gained + ModelDrafts::kPrefillChunk);
  for (size_t j = 0; j < jobs.size(); ++j) take(job_rows[j], ModelDrafts::drafts(*jobs[j].text));
}

// What the device may draw: for one choice, by sampling alone.
void EngineImpl::plan_draws(Flight& flight) {
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    const StepRow& row = flight.plan.rows[i];
    const int64_t n_tokens = std::ssize(flight.fed[i]);
    const int64_t n_logits = Executor::n_logits(row, n_tokens);
    flight.rows[i].first_logit = flight.draws.size();
    flight.cost.tokens += n_tokens;
    if (n_logits == 0) continue;
    const Choice& choice =
        live_.at(row.key.request).parts[static_cast<size_t>(row.key.choice)].choice;
    DrawRow draw;
    draw.wanted = row.ends_text && !row.all_logits && choice.samples_only() &&
                  scheduler_.find(row.key)->spec.n_choices == 1;
    draw.params = choice.sampling();
    flight.rows[i].drawn = draw.wanted && executor_.draws();
    for (int64_t token = n_tokens - n_logits; token < n_tokens; ++token) {
      draw.position = row.row.start + token + 1;
      flight.draws.push_back(draw);
    }
  }
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

// Draws what the window decides for one choice: the token after it, and while drafts are accepted,
// those after them.
RowResult::Choice EngineImpl::take_choice(LiveRequest& live, const Flight& flight, size_t i,
                                          int32_t choice, const PassResult& pass,
                                          RowResult& result) {
  const StepRow& row = flight.plan.rows[i];
  const Flight::RowState& state = flight.rows[i];
  std::span<const int32_t> fed = flight.fed[i];
  auto logit = static_cast<int64_t>(state.first_logit);
  if (row.phase == Phase::kSweep) {
    // A prompt's window is committed; only what follows its last token is open.
    logit += Executor::n_logits(row, std::ssize(fed)) - 1;
    fed = fed.last(1);
  }
  const int64_t vocab = model_->spec().vocab;
  LiveRequest::Part& part = live.parts[static_cast<size_t>(choice)];
  RowResult::Choice out;
  const auto end = [&](FinishReason reason) {
    out.ended = true;
    end_choice(live, choice, reason);
  };
  std::vector<TokenEvent> events;
  int32_t taken = 0;
  if (state.max_new == 0) end(FinishReason::kLength);
  for (bool agrees = true; agrees && !out.ended; ++taken, ++logit) {
    const int64_t position = state.length + std::ssize(events);
    const auto drawn =
        state.drawn
            ? part.choice.take(pass.drawn[logit], position)
            : part.choice.draw(draw_, {pass.logits + logit * vocab, static_cast<size_t>(vocab)},
                               position);
    if (drawn.status == Choice::Status::kToken) {
      // A draft is accepted if it is what the model draws in its place.
      agrees = state.drawn ? taken < pass.n_accepted[i]
                           : taken + 1 < std::ssize(fed) &&
                                 fed[static_cast<size_t>(taken + 1)] == drawn.token;
      events.push_back({choice, drawn.token, agrees, drawn.logprob});
      if (std::ssize(events) == state.max_new) end(FinishReason::kLength);
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
      end(FinishReason::kStopped);
    }
  }
  for (const TokenEvent& event : events) {
    out.tokens.push_back(event.token);
    result.accepted += event.from_draft ? 1 : 0;
  }
  if (row.phase == Phase::kStep) {
    result.n_commit = std::min(std::max(taken, 1), static_cast<int32_t>(events.size()) + 1);
  }
  live.usage.new_tokens += std::ssize(events);
  return out;
}

// Of choice 0, once it has ended: what sessions go on from.
void EngineImpl::keep_text(LiveRequest& live, const Flight& flight, size_t i,
                           const RowResult::Choice& choice) {
  const Flight::RowState& state = flight.rows[i];
  if (!state.text.empty()) {
    live.first_text = state.text;
  } else {
    const auto& tokens = scheduler_.find(flight.plan.rows[i].key)->spec.tokens;
    live.first_text.assign(tokens.begin(), tokens.begin() + state.length);
  }
  live.first_text.insert(live.first_text.end(), choice.tokens.begin(), choice.tokens.end());
}

RowResult EngineImpl::take_row(const Flight& flight, size_t i, const PassResult& pass) {
  const StepRow& row = flight.plan.rows[i];
  RowResult result;
  result.n_tokens = static_cast<int32_t>(flight.fed[i].size());
  result.n_commit = row.phase == Phase::kSweep ? result.n_tokens : 0;
  if (row.only_folds) return result;
  LiveRequest& live = live_.at(row.key.request);
  const float* logits =
      pass.logits + static_cast<int64_t>(flight.rows[i].first_logit) * model_->spec().vocab;
  if (row.all_logits) take_prompt_logprobs(live, row, logits);
  if (!row.ends_text) return result;
  if (!live.prompt_done) {
    live.prompt_done = true;
    if (live.request.prompt_logprobs >= 0) {
      live.listener->prompt_logprobs(std::move(live.prompt_logprobs));
    }
  }
  const Sequence* sequence = scheduler_.find(row.key);
  const int32_t n_choices = sequence == nullptr ? 1 : sequence->spec.n_choices;
  for (int32_t c = 0; c < n_choices; ++c) {
    result.choices.push_back(take_choice(live, flight, i, row.key.choice + c, pass, result));
  }
  live.usage.accepted += result.accepted;
  for (int32_t c = 0; c < n_choices; ++c) {
    const int32_t choice = row.key.choice + c;
    if (!result.choices[static_cast<size_t>(c)].ended) continue;
    if (c == 0 && sequence != nullptr) live.usage.preemptions += sequence->preemptions;
    if (choice == 0) keep_text(live, flight, i, result.choices[0]);
    if (flight.committed) continue;  // settle() goes on
    just_ended_.push_back({row.key.request, choice});
    if (choice == 0 && options_.test_hooks) live.first_hash = hash_after(row, result);
  }
  return result;
}

// A row whose sequence ended in the step before: nothing of it is kept but its fold.
RowResult EngineImpl::drop_row(const Flight& flight, size_t i) {
  const StepRow& row = flight.plan.rows[i];
  RowResult result;
  result.n_tokens = static_cast<int32_t>(flight.fed[i].size());
  result.choices.push_back({{}, /*ended=*/true});
  just_ended_.push_back(row.key);
  if (row.key.choice == 0 && options_.test_hooks) {
    live_.at(row.key.request).first_hash = hash_after(row, result);
  }
  return result;
}

// Of the sequence's state once this row is committed.
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

// Its results can be committed before they are known: every row's next token is the device's to
// draw, and no draft of the host follows it.
bool EngineImpl::runs_ahead(const Flight& flight) const {
  if (!executor_.overlaps() || !scheduler_.has_slack()) return false;
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    const StepRow& row = flight.plan.rows[i];
    const bool known = row.only_folds || (row.phase == Phase::kSweep && !row.ends_text);
    if (flight.rows[i].dropped) continue;
    if (row.all_logits || (!known && !flight.rows[i].drawn) ||
        (row.phase == Phase::kStep && std::ssize(flight.fed[i]) > 1)) {
      return false;
    }
    if (!known && scheduler_.find(row.key)->spec.max_drafts > 0) return false;
  }
  return true;
}

void EngineImpl::commit_ahead(Flight& flight) {
  StepResult result;
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    const StepRow& row = flight.plan.rows[i];
    Flight::RowState& state = flight.rows[i];
    if (state.dropped) {
      result.rows.push_back(drop_row(flight, i));
      continue;
    }
    RowResult& r = result.rows.emplace_back();
    r.n_tokens = r.n_commit = static_cast<int32_t>(flight.fed[i].size());
    if (!row.ends_text || row.only_folds) continue;
    const bool ends = state.max_new <= 1;
    RowResult::Choice& choice = r.choices.emplace_back();
    if (state.max_new > 0) choice.tokens.push_back(kUnknownToken);
    choice.ended = ends;
    if (!ends) continue;
    state.text = scheduler_.find(row.key)->spec.tokens;
    if (row.key.choice == 0 && options_.test_hooks) {
      live_.at(row.key.request).first_hash = hash_after(row, r);
    }
  }
  scheduler_.commit(flight.plan, result);
  flight.committed = true;
}

// Waits for a step that was committed ahead and tells what it drew. A sequence that ended is
// dropped from the step that follows.
void EngineImpl::settle(Flight& flight, Flight* next) {
  const PassResult pass = executor_.wait();
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    const StepRow& row = flight.plan.rows[i];
    const Flight::RowState& state = flight.rows[i];
    if (state.dropped) continue;
    const RowResult result = take_row(flight, i, pass);
    if (result.choices.empty()) continue;
    const RowResult::Choice& choice = result.choices[0];
    flight.cost.new_tokens += std::ssize(choice.tokens);
    if (state.max_new > 0) {
      scheduler_.resolve(row.key,
                         choice.tokens.empty() ? std::nullopt : std::optional(choice.tokens[0]));
    }
    if (!choice.ended) continue;
    if (state.max_new <= 1) {
      just_ended_.push_back(row.key);
      continue;
    }
    const auto follows = [&](const StepRow& other) { return other.key == row.key; };
    const auto at = next == nullptr ? nullptr : &next->plan.rows;
    const auto found =
        at == nullptr ? std::vector<StepRow>::iterator{} : std::ranges::find_if(*at, follows);
    if (at != nullptr && found != at->end()) {
      next->rows[static_cast<size_t>(found - at->begin())].dropped = true;
    } else {
      just_ended_.push_back(row.key);
      scheduler_.remove(row.key);
    }
  }
  const double passed = trace_.now();
  flight.cost.seconds = passed - flight.drafted;
  scheduler_.observe(flight.cost);
  if (trace_.on()) trace_step(flight, passed);
}

// The results of the step that was launched last, and all that they change.
void EngineImpl::finish_flight() {
  Flight flight = std::move(*flight_);
  flight_.reset();
  const PassResult pass = executor_.wait();
  const double passed = trace_.now();
  StepResult result;
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    result.rows.push_back(flight.rows[i].dropped ? drop_row(flight, i) : take_row(flight, i, pass));
    for (const auto& choice : result.rows[i].choices) {
      flight.cost.new_tokens += std::ssize(choice.tokens);
    }
  }
  scheduler_.commit(flight.plan, result);
  flight.cost.seconds = passed - flight.drafted;
  scheduler_.observe(flight.cost);
  report_ended();
  if (trace_.on()) trace_step(flight, passed);
}

// On a device that overlaps passes, a step is planned and launched while the one before it runs, if
// nothing but the drawn tokens themselves is missing; the device finds those where it drew them.
void EngineImpl::step() {
  const bool ahead = flight_ && runs_ahead(*flight_);
  if (flight_ && !ahead) finish_flight();
  if (ahead) commit_ahead(*flight_);
  StepPlan plan = scheduler_.plan();
  note_admissions();
  drop_waiting_drafters();
  act(plan.actions);
  std::optional<Flight> next;
  if (!plan.rows.empty()) {
    next = make_flight(std::move(plan));
    propose(*next);
    next->drafted = trace_.now();
    next->cost.draft_seconds = next->drafted - next->start;
    plan_draws(*next);
    launch(*next);
    ++counts_.steps;
  }
  if (ahead) {
    settle(*flight_, next ? &*next : nullptr);
    report_ended();
  }
  flight_ = std::move(next);
  if (flight_ && !executor_.overlaps()) finish_flight();
}

// A token that the step under way draws is named by that step's row.
void EngineImpl::launch(Flight& flight) {
  for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
    for (int32_t& id : flight.fed[i]) {
      if (id != kUnknownToken) continue;
      const auto& before = flight_->plan.rows;
      const auto row = std::ranges::find(before, flight.plan.rows[i].key, &StepRow::key);
      REPLAYSSM_CHECK(row != before.end(), "an unknown token that no step draws");
      id = drawn_token(static_cast<int32_t>(row - before.begin()));
    }
  }
  executor_.launch(flight.plan.rows, flight.fed, flight.draws);
}

void EngineImpl::trace_step(const Flight& flight, double passed) {
  const double end = trace_.now();
  trace_.span("step", 0, flight.start, end,
              concat("{\"rows\": ", flight.plan.rows.size(), ", \"tokens\": ", flight.cost.tokens,
                     ", \"requests\": ", live_.size(), "}"));
  trace_.span("draft", 0, flight.start, flight.drafted, "{}");
  trace_.span("pass", 0, flight.drafted, passed, "{}");
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
  stats.slots = scheduler_.memory().slots().size();
  stats.slots_free = scheduler_.memory().slots().n_free();
  stats.rings = scheduler_.memory().rings().size();
  stats.rings_free = scheduler_.memory().rings().n_free();
  stats.pages = scheduler_.memory().pages().size();
  stats.pages_free = scheduler_.memory().pages().n_free();
  stats.snapshots = scheduler_.memory().cache().n_snapshots();
  stats.snapshot_pages = scheduler_.memory().cache().n_pages();
  stats.snapshot_bytes = stats.snapshots * scheduler_.options().slot_bytes +
                         stats.snapshot_pages * scheduler_.options().page_bytes;
  if (host_tier_) {
    stats.host_snapshots = std::ssize(host_tier_->all());
    stats.host_snapshot_bytes = host_tier_->bytes();
  }
  stats.preemptions = scheduler_.n_preemptions();
  stats.evicted = scheduler_.memory().cache().n_evicted();
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
