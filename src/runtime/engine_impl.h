// The engine's inside: requests at work, and the thread that steps them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/budget.h"
#include "runtime/choice.h"
#include "runtime/disk_tier.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/host_tier.h"
#include "runtime/model_drafts.h"
#include "runtime/scheduler.h"
#include "runtime/trace.h"

namespace replayssm {

// Refuses what no engine of this model and these options can do; the text is empty if all is well.
std::optional<Refusal> check_request(const GenerationRequest& request, const Model& model,
                                     const EngineOptions& options, int32_t max_sequences);

// Why nothing can be said of a request's end.
Refusal not_finished(RequestId id);
Refusal no_text(RequestId id);

// A request from submit to finished.
struct LiveRequest {
  struct Part {
    Choice choice;
    std::unique_ptr<Drafter> drafter;               // of its own
    std::unique_ptr<ModelDrafts::Text> draft_text;  // of the draft model, which all share
    std::optional<FinishReason> ended;
    explicit Part(const GenerationRequest& request, int32_t index) : choice(request, index) {}
  };

  LiveRequest(GenerationRequest request_in, std::shared_ptr<Listener> listener_in);

  GenerationRequest request;
  std::shared_ptr<Listener> listener;
  std::vector<Part> parts;  // one a choice
  RequestUsage usage;
  std::string error;
  std::vector<TokenLogprob> prompt_logprobs;
  bool prompt_done = false;
  std::vector<int32_t> first_text;  // choice 0's, once it has ended
  std::string first_hash;           // with test hooks: its state's
  double submitted = 0, admitted = 0, first_token = 0;

  int64_t prompt_length() const { return std::ssize(request.prompt); }
  bool ended() const;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::shared_ptr<const Model> model, const Device& device, const ops::Context& context,
             const EngineOptions& options);
  ~EngineImpl() override;

  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<Listener> listener,
                                RequestId* id) override;
  void cancel(RequestId id) override;
  void drain(double seconds) override;
  EngineStats stats() const override;
  MemoryReport memory() const override { return budget_.report; }
  std::optional<Refusal> save_session(RequestId id, const std::string& name) override;
  std::optional<Refusal> restore_session(const std::string& name) override;
  std::optional<Refusal> fork_session(const std::string& from, const std::string& to,
                                      int64_t length) override;
  std::optional<Refusal> drop_session(const std::string& name) override;
  std::vector<SessionInfo> sessions() const override;
  std::optional<Refusal> preempt(RequestId id) override;
  std::optional<Refusal> final_state(RequestId id, FinalState* state) override;
  std::optional<Refusal> drop_cache() override;

 private:
  // A step from its launch until the scheduler has taken all of it.
  struct Flight {
    struct RowState {
      int64_t length = 0;         // of the sequence, before this step
      int64_t max_new = 0;        // tokens that it may still get
      size_t first_logit = 0;     // row of logits
      bool drawn = false;         // by the device, all its rows of logits
      bool dropped = false;       // its sequence ended in the step before
      std::vector<int32_t> text;  // of a sequence that ends whatever is drawn
    };
    StepPlan plan;
    std::vector<std::vector<int32_t>> fed;  // ids of each row's window
    std::vector<DrawRow> draws;             // a row of logits each
    std::vector<RowState> rows;
    bool committed = false;  // ahead of its results
    PassCost cost;
    double start = 0, drafted = 0;
  };

  // A finished request: what sessions are made of.
  struct Finished {
    RequestId id;
    std::vector<int32_t> text;
    std::string hash;
  };

  // ---- engine.cpp: other threads
  void post(std::function<void()> command);
  std::optional<Refusal> call(const std::function<std::optional<Refusal>()>& command);
  void loop();
  int64_t held_bytes() const;
  void poison_all();

  // ---- engine_step.cpp: the engine's thread
  void step();
  void act(std::span<const Action> actions);
  Flight make_flight(StepPlan plan);
  void propose(Flight& flight);
  void plan_draws(Flight& flight);
  void launch(Flight& flight);
  bool runs_ahead(const Flight& flight) const;
  void commit_ahead(Flight& flight);
  void settle(Flight& flight, Flight* next);
  void finish_flight();
  RowResult take_row(const Flight& flight, size_t i, const PassResult& pass);
  RowResult drop_row(const Flight& flight, size_t i);
  void take_prompt_logprobs(LiveRequest& live, const StepRow& row, const float* logits);
  RowResult::Choice take_choice(LiveRequest& live, const Flight& flight, size_t i, int32_t choice,
                                const PassResult& pass, RowResult& result);
  void keep_text(LiveRequest& live, const Flight& flight, size_t i,
                 const RowResult::Choice& choice);
  bool drafts_by(DraftMode mode, const GenerationRequest& request) const;
  void drop_waiting_drafters();
  void trace_step(const Flight& flight, double passed);
  void note_admissions();
  void end_choice(LiveRequest& live, int32_t choice, FinishReason reason);
  void report_ended();
  void report_finished(RequestId id);
  std::string hash_after(const StepRow& row, const RowResult& result);
  void cancel_now(RequestId id);
  void publish_stats();

  // ---- engine_tier.cpp: the engine's thread
  uint64_t fingerprint();
  void open_tiers();
  StateBytes read_state(int32_t slot, std::span<const int32_t> pages) const;
  void keep_below(const PrefixCache::Evicted& gone);
  void keep_all_on_disk();
  void take_in(const SnapshotFile& file);
  void fetch_from_below(const GenerationRequest& request);
  SnapshotFile file_of(std::vector<int32_t> text) const;
  std::optional<Refusal> put_session(const std::string& name, std::vector<int32_t> text);

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  ModelMemory memory_;  // on the device
  BudgetPlan budget_;
  Trace trace_;
  Executor executor_;
  Scheduler scheduler_;
  DrawMemory draw_;
  std::optional<HostTier> host_tier_;
  std::optional<DiskTier> tier_;
  std::optional<ModelDrafts> draft_model_;

  // Of the engine's thread alone.
  std::map<RequestId, LiveRequest> live_;
  std::vector<SequenceKey> just_ended_;
  std::deque<Finished> finished_;
  std::optional<Flight> flight_;  // launched, not committed
  EngineStats counts_;            // its running totals
  int64_t scheduled_preemptions_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;   // of the engine's thread
  std::condition_variable quiet_;  // of who drains
  std::deque<std::function<void()>> commands_;
  EngineStats stats_;
  std::map<std::string, std::vector<int32_t>> sessions_;
  std::set<std::string> saved_sessions_;  // on disk
  RequestId next_id_ = 1;
  int64_t n_waiting_ = 0;     // submitted and not yet admitted
  int64_t n_live_ = 0;        // submitted and not yet finished
  int64_t n_unreported_ = 0;  // of whom finished() has not returned
  bool draining_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace replayssm
