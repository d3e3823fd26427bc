#include <algorithm>
#include <chrono>
#include <future>

#include "core/error.h"
#include "runtime/engine_impl.h"

namespace replayssm {
namespace {

SchedulerOptions scheduler_options(const Model& model, const ModelMemory& memory,
                                   const EngineOptions& options, const BudgetPlan& budget) {
  SchedulerOptions out;
  out.grid = model.grid();
  out.max_window = model.options().max_window;
  out.max_positions = options.max_positions;
  out.max_sequences = budget.max_sequences;
  out.pools = budget.pools;
  out.chunk_tokens = options.chunk_tokens;
  out.score_tokens = kScoreTokens;
  out.prefix_cache = options.prefix_cache;
  out.cuts = {model.grid().interval, options.snapshot_interval, options.message_end_ids};
  out.slot_bytes = memory.checkpoint_slot + memory.conv_rows;
  out.page_bytes = memory.kv_page;
  out.poison = options.test_hooks;
  out.tell_evictions = options.host_bytes > 0 || !options.cache_folder.empty();
  return out;
}

// With test hooks, one slot more than the scheduler knows of: state_hash folds there.
PoolSizes executor_pools(const EngineOptions& options, PoolSizes pools) {
  if (options.test_hooks) ++pools.checkpoint_slots;
  return pools;
}

Refusal no_hooks() { return {Refusal::Kind::kInvalid, "", "needs test hooks"}; }

const EngineOptions& checked(const EngineOptions& o, const Model& model) {
  const auto check = [](bool good, const char* field, const auto&... why) {
    if (!good) fail(field, " ", why...);
  };
  check(o.max_positions >= 2 && o.max_positions <= model.spec().max_positions, "max_positions",
        o.max_positions, " is not in [2, ", model.spec().max_positions, "]");
  check(o.max_sequences >= 1 && o.max_sequences <= 4096, "max_sequences", o.max_sequences,
        " is not in [1, 4096]");
  check(o.max_queued >= 0, "max_queued", o.max_queued, " is negative");
  check(o.chunk_tokens > 0 && o.chunk_tokens % kScoreTokens == 0 && o.chunk_tokens <= 65536,
        "chunk_tokens", o.chunk_tokens, " is not a multiple of ", kScoreTokens, " up to 65536");
  check(o.snapshot_interval >= 0, "snapshot_interval", o.snapshot_interval, " is negative");
  check(o.host_bytes >= 0, "host_bytes", o.host_bytes, " is negative");
  check(o.cache_folder_bytes >= 0, "cache_folder_bytes", o.cache_folder_bytes, " is negative");
  check(o.memory_bytes >= 0, "memory_bytes", o.memory_bytes, " is negative");
  const bool drafts = o.draft != DraftMode::kNone && o.draft != DraftMode::kDefault;
  check(o.draft_tokens >= 0 && (!drafts || o.draft_tokens < model.options().max_window),
        "draft_tokens", o.draft_tokens, " does not fit the model's window of ",
        model.options().max_window);
  check(o.draft != DraftMode::kModel || o.draft_model != nullptr, "draft_model",
        "is missing; draft names it");
  check(o.draft != DraftMode::kMtp || model.spec().mtp, "draft",
        "is the model's drafting head; the model was loaded without one");
  if (o.draft_model != nullptr) {
    check(o.draft_model->spec().vocab == model.spec().vocab, "draft_model", "has ",
          o.draft_model->spec().vocab, " vocabulary entries, the model ", model.spec().vocab);
    check(o.draft_model->spec().max_positions >= o.max_positions, "draft_model", "holds ",
          o.draft_model->spec().max_positions, " positions, max_positions is ", o.max_positions);
  }
  return o;
}

}  // namespace

EngineImpl::EngineImpl(std::shared_ptr<const Model> model, const Device& device,
                       const ops::Context& context, const EngineOptions& options)
    : model_(std::move(model)),
      options_(checked(options, *model_)),
      memory_(device.memory(*model_)),
      budget_(fit_budget(*model_, memory_, options.draft_model.get(), device, options)),
      trace_(options.trace_file),
      executor_(*model_, memory_, device, executor_pools(options, budget_.pools), budget_.forward),
      scheduler_(scheduler_options(*model_, memory_, options, budget_)),
      draw_(context, model_->spec().vocab) {
  if (options_.draft_model != nullptr) {
    CutRule cuts = scheduler_.options().cuts;
    cuts.grid = options_.draft_model->grid().interval;
    draft_model_.emplace(options_.draft_model, device, context, budget_.drafts, cuts);
  }
  int64_t planned = 0;
  for (const auto& [purpose, bytes] : budget_.report.purposes) planned += bytes;
  REPLAYSSM_CHECK(held_bytes() <= planned, "holds ", held_bytes(), " bytes, planned ", planned);
  open_tiers();
  if (options_.test_hooks) poison_all();
  publish_stats();
  thread_ = std::thread([this] { loop(); });
}

int64_t EngineImpl::held_bytes() const {
  int64_t bytes = memory_.weights + executor_.bytes() + draw_.bytes();
  if (draft_model_) bytes += draft_model_->bytes();
  return bytes;
}

// All slots, rings and pages.
void EngineImpl::poison_all() {
  const PoolSizes& pools = budget_.pools;
  const auto poison = [this](Action::Kind kind, int32_t size) {
    for (int32_t i = 0; i < size; ++i) executor_.act({kind, i, -1, 0, {}});
  };
  poison(Action::Kind::kPoisonCheckpoint, pools.checkpoint_slots);
  poison(Action::Kind::kPoisonRing, pools.ring_slots);
  poison(Action::Kind::kPoisonPage, pools.kv_pages);
}

EngineImpl::~EngineImpl() {
  drain(0);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  // What is known stays known.
  if (!tier_) return;
  act(scheduler_.take_actions());
  keep_all_on_disk();
}

void EngineImpl::loop() {
  for (;;) {
    std::deque<std::function<void()>> commands;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !commands_.empty() || !scheduler_.idle(); });
      if (stop_ && commands_.empty() && scheduler_.idle()) return;
      commands.swap(commands_);
    }
    // Commands find every step committed.
    if (flight_ && !commands.empty()) finish_flight();
    for (const auto& command : commands) command();
    step();
    publish_stats();
    const std::lock_guard lock(mutex_);
    if (n_unreported_ == 0) quiet_.notify_all();
  }
}

void EngineImpl::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

// Runs on the engine's thread, between two steps.
std::optional<Refusal> EngineImpl::call(const std::function<std::optional<Refusal>()>& command) {
  REPLAYSSM_CHECK(std::this_thread::get_id() != thread_.get_id(), "called from a listener");
  auto answer = std::make_shared<std::promise<std::optional<Refusal>>>();
  auto future = answer->get_future();
  post([this, &command, answer] {
    const auto refusal = command();
    publish_stats();  // whoever is told finds it counted
    answer->set_value(refusal);
  });
  return future.get();
}

std::optional<Refusal> EngineImpl::submit(GenerationRequest request,
                                          std::shared_ptr<Listener> listener, RequestId* id) {
  REPLAYSSM_CHECK(listener != nullptr && id != nullptr, "no listener, or no id");
  if (!request.session.empty()) {
    const std::lock_guard lock(mutex_);
    const auto session = sessions_.find(request.session);
    if (session == sessions_.end()) {
      return Refusal{Refusal::Kind::kUnknownSession, "session",
                     concat("no session named \"", request.session, "\"")};
    }
    request.prompt.insert(request.prompt.begin(), session->second.begin(), session->second.end());
  }
  if (auto refusal = check_request(request, *model_, options_, budget_.max_sequences)) {
    return refusal;
  }
  const double now = trace_.now();
  const std::lock_guard lock(mutex_);
  if (draining_) return Refusal{Refusal::Kind::kDraining, "", "the engine takes no more requests"};
  const int64_t most = int64_t{budget_.max_sequences} + options_.max_queued;
  if (n_live_ >= most) {
    return Refusal{Refusal::Kind::kBusy, "",
                   concat(n_live_, " requests run or wait already; at most ", most)};
  }
  ++n_waiting_;
  ++n_live_;
  ++n_unreported_;
  *id = next_id_++;
  auto shared = std::make_shared<GenerationRequest>(std::move(request));
  commands_.push_back([this, id = *id, shared, listener = std::move(listener), now] {
    SequenceSpec spec;
    spec.tokens = shared->prompt;
    spec.n_choices = shared->n;
    spec.max_length =
        std::min(options_.max_positions, std::ssize(shared->prompt) + shared->max_new_tokens);
    spec.all_logits = shared->prompt_logprobs >= 0;
    const DraftMode mode = shared->draft == DraftMode::kDefault ? options_.draft : shared->draft;
    const bool scripted = !shared->scripted_drafts.empty();
    if (scripted || (mode != DraftMode::kNone && mode != DraftMode::kDefault)) {
      spec.max_drafts = shared->draft_tokens >= 0 ? shared->draft_tokens : options_.draft_tokens;
      spec.adaptive = options_.adaptive_drafts && !scripted;
    }
    auto [live, added] = live_.try_emplace(id, std::move(*shared), listener);
    REPLAYSSM_CHECK(added, "request ", id, " twice");
    live->second.submitted = now;
    fetch_from_below(live->second.request);
    scheduler_.add(id, std::move(spec));
  });
  wake_.notify_one();
  return std::nullopt;
}

void EngineImpl::cancel(RequestId id) {
  post([this, id] { cancel_now(id); });
}

void EngineImpl::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto quiet = [this] { return n_unreported_ == 0; };
  if (quiet_.wait_for(lock, std::chrono::duration<double>(seconds), quiet)) return;
  commands_.push_back([this] {
    while (!live_.empty()) cancel_now(live_.begin()->first);
  });
  wake_.notify_one();
  quiet_.wait(lock, quiet);
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<Refusal> EngineImpl::preempt(RequestId id) {
  if (!options_.test_hooks) return no_hooks();
  const auto take_memory = [this, id]() -> std::optional<Refusal> {
    const auto live = live_.find(id);
    bool any = false;
    for (int32_t i = 0; live != live_.end() && i < live->second.request.n; ++i) {
      any = scheduler_.preempt({id, i}) || any;
    }
    if (any) return std::nullopt;
    return Refusal{Refusal::Kind::kConflict, "", concat("request ", id, " does not run")};
  };
  if (std::this_thread::get_id() != thread_.get_id()) return call(take_memory);
  post([take_memory] { take_memory(); });
  return std::nullopt;
}

std::optional<Refusal> EngineImpl::final_state(RequestId id, FinalState* state) {
  if (!options_.test_hooks) return no_hooks();
  return call([this, id, state]() -> std::optional<Refusal> {
    const auto found = std::ranges::find(finished_, id, &Finished::id);
    if (found == finished_.end()) return not_finished(id);
    if (found->hash.empty()) return no_text(id);
    *state = {found->hash, found->text};
    return std::nullopt;
  });
}

std::optional<Refusal> EngineImpl::drop_cache() {
  if (!options_.test_hooks) return no_hooks();
  return call([this]() -> std::optional<Refusal> {
    scheduler_.drop_cache();
    if (draft_model_) draft_model_->forget();
    act(scheduler_.take_actions());
    return std::nullopt;
  });
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const Device& device,
                                    const ops::Context& context, const EngineOptions& options) {
  return std::make_unique<EngineImpl>(std::move(model), device, context, options);
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const ops::Context& context,
                                    const EngineOptions& options) {
  return make_engine(std::move(model), *cpu_device(context), context, options);
}

}  // namespace replayssm
