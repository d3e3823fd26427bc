// The engine: many requests at once over one model, one byte budget and one prefix cache.
//
// One thread owns the scheduler, the pools and the model; all else talks to it by submit, cancel
// and the listener. What a request answers is a pure function of the request: it does not depend
// on its batch mates, on drafts, chunks, preemption, cache hits, forks or restores (on a device
// whose passes are exact: the CPU, or CUDA in its exact mode).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "ops/context.h"
#include "ops/sample.h"
#include "runtime/backend.h"
#include "runtime/draft.h"

namespace replayssm {

using RequestId = uint64_t;

// Which ids may come next, given the ids so far: a grammar. One object serves one choice of one
// request and is called on the engine's thread alone. What it throws ends that choice with an
// error.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // A constraint in the same state: verification walks a copy through the drafts.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
  // allowed[id] != 0 keeps id's logit; the caller sets the others to -inf. Size: the vocabulary.
  virtual void allowed(std::span<uint8_t> allowed) = 0;
  // False if the id is not allowed; the state is then unchanged.
  virtual bool accept(int32_t id) = 0;
};

struct Penalties {
  float repetition = 1.0f;  // logit of a seen id: / r if positive, else * r; prompt ids count too
  float presence = 0.0f;    // - presence for each id of the answer
  float frequency = 0.0f;   // - frequency * its count in the answer
  std::vector<std::pair<int32_t, float>> bias;  // (id, added to its logit)
};

enum class DraftMode : int32_t { kDefault, kNone, kNgram, kModel, kMtp };

struct GenerationRequest {
  std::string name;  // the caller's request id: logs, trace
  std::vector<int32_t> prompt;
  int64_t max_new_tokens = 16;
  int32_t n = 1;  // choices; choice i draws with seed + i
  ops::SamplerParams sampling;
  Penalties penalties;
  std::vector<int32_t> stop_ids;  // end a choice; not part of it
  int32_t logprobs = -1;          // -1: none; k: the token's and the k likeliest (raw logits)
  int32_t prompt_logprobs = -1;   // likewise for prompt tokens 1..; turns prefix hits off only for
                                  // the positions it needs
  std::shared_ptr<const TokenConstraint> constraint;  // cloned for each choice; null: none
  DraftMode draft = DraftMode::kDefault;
  int32_t draft_tokens = -1;  // at most; -1: the engine's
  std::string session;        // goes on from this saved or live session; empty: none
  std::vector<std::vector<int32_t>> scripted_drafts;  // test hook: one list a step
};

struct TokenLogprob {
  int32_t token = -1;
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;
};

struct TokenEvent {
  int32_t choice = 0;
  int32_t token = -1;
  bool from_draft = false;
  std::optional<TokenLogprob> logprob;
};

// kStopped: the listener ended it. kConstraintDone: the grammar allows no further token.
enum class FinishReason : int32_t {
  kStopId,
  kStopped,
  kLength,
  kCancelled,
  kConstraintDone,
  kError,
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // prompt positions that were not computed again
  std::string cache_note;     // why not more; empty if all that may be reused was
  int64_t new_tokens = 0;     // all choices
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t preemptions = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

// Calls come on the engine's thread, one at a time, and must not block. After `finished` (once,
// whatever happens) the listener is let go.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void prompt_logprobs(std::vector<TokenLogprob>) {}
  // The tokens that one step decided for one choice, in order. Returns how many are kept: all of
  // them, and the choice goes on; or fewer (a stop string was seen), and the choice ends there with
  // kStopped. No call has more than the rest of max_new_tokens.
  virtual size_t tokens(std::span<const TokenEvent> events) = 0;
  virtual void choice_finished(int32_t choice, FinishReason reason) = 0;
  virtual void finished(const RequestUsage& usage, const std::string& error) = 0;
};

// Why something was not done.
struct Refusal {
  enum class Kind : int32_t {
    kInvalid,
    kBusy,
    kDraining,
    kUnknownSession,
    kUnknownRequest,  // or finished too long ago
    kConflict,        // with the state that things are in
    kFailed,          // the disk
  } kind;
  std::string field;    // of GenerationRequest
  std::string message;  // names the numbers
};

struct EngineOptions {
  int64_t memory_bytes = 0;         // all of it; 0: 80 % of what the machine has free
  int64_t max_positions = 4096;     // of one sequence
  int32_t max_sequences = 32;       // that run at once
  int32_t max_queued = 256;         // beside them; beyond: kBusy
  int64_t chunk_tokens = 256;       // of prefill in one pass
  int64_t snapshot_interval = 256;  // I: further cut points, rounded down to the grid; 0: none
  bool prefix_cache = true;
  std::vector<int32_t> message_end_ids;      // cut after these (a chat template's end tokens)
  std::shared_ptr<const Model> draft_model;  // null: no model drafter
  DraftMode draft = DraftMode::kNone;
  int32_t draft_tokens = 4;
  bool adaptive_drafts = true;
  int64_t host_bytes = 0;    // of host memory, for snapshots that the device's gives up; 0: none
  std::string cache_folder;  // disk tier for snapshots and sessions; empty: none
  int64_t cache_folder_bytes = int64_t{1} << 30;
  std::string trace_file;   // Chrome trace format; empty: none
  bool test_hooks = false;  // scripted drafts, forced preemption, NaN in fresh and freed memory
};

struct SessionInfo {
  std::string name;
  int64_t tokens = -1;  // -1: on disk, not restored yet
  bool saved = false;   // on disk
};

// Bytes by purpose; the sum never passes `budget`.
struct MemoryReport {
  int64_t budget = 0;
  std::vector<std::pair<std::string, int64_t>> purposes;
};

struct EngineStats {
  int64_t running = 0, queued = 0;
  int64_t slots = 0, slots_free = 0;  // checkpoint slots
  int64_t rings = 0, rings_free = 0;
  int64_t pages = 0, pages_free = 0;
  int64_t snapshots = 0, snapshot_pages = 0, snapshot_bytes = 0;
  int64_t host_snapshots = 0, host_snapshot_bytes = 0;
  int64_t steps = 0, prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  int64_t drafted = 0, accepted = 0, preemptions = 0, cancelled = 0;
  int64_t evicted = 0, refused_corrupt = 0;
  int64_t state_bytes_moved = 0, state_bytes_plain = 0;  // replay's traffic and plain state's
};

class Engine {
 public:
  virtual ~Engine() = default;  // cancels what runs

  // The id, or why not. The prompt must leave room for one token.
  virtual std::optional<Refusal> submit(GenerationRequest request,
                                        std::shared_ptr<Listener> listener, RequestId* id) = 0;
  // Takes effect at the next step boundary; unknown or finished ids are ignored.
  virtual void cancel(RequestId id) = 0;
  // No more requests; returns when all are finished, or cancels what is left after `seconds`.
  virtual void drain(double seconds) = 0;

  virtual EngineStats stats() const = 0;
  virtual MemoryReport memory() const = 0;

  // Sessions: a text with its state under a name. Save keeps a finished request's text (its prompt
  // and choice 0) exactly as it stands; restore brings it from the disk tier; fork makes `to` the
  // first `length` tokens of `from`. Each returns why not, or nothing.
  virtual std::optional<Refusal> save_session(RequestId id, const std::string& name) = 0;
  virtual std::optional<Refusal> restore_session(const std::string& name) = 0;
  virtual std::optional<Refusal> fork_session(const std::string& from, const std::string& to,
                                              int64_t length) = 0;
  virtual std::optional<Refusal> drop_session(const std::string& name) = 0;

  // By name. Does not wait for the engine's thread.
  virtual std::vector<SessionInfo> sessions() const = 0;

  // Test hooks: refused unless options.test_hooks. A listener may call preempt: it takes effect at
  // the next step boundary.
  virtual std::optional<Refusal> preempt(RequestId id) = 0;
  // Of a finished request, choice 0's text, prompt and answer, and its state's hash: XXH3 over the
  // canonical state at the grid point, ring rows to n, conv rows and KV, hex.
  struct FinalState {
    std::string hash;
    std::vector<int32_t> text;
  };
  virtual std::optional<Refusal> final_state(RequestId id, FinalState* state) = 0;
  // Forgets all snapshots in memory.
  virtual std::optional<Refusal> drop_cache() = 0;
};

// The models are the device's (Device::load); the context, which draws, must outlive the engine.
// Throws Error if the budget holds not even one sequence: the text says what would fit.
std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const Device& device,
                                    const ops::Context& context, const EngineOptions& options);
// On the CPU.
std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const ops::Context& context,
                                    const EngineOptions& options);

}  // namespace replayssm
