// The engine's sessions, and snapshots that go to disk and come back.
#include <algorithm>

#include "core/error.h"
#include "runtime/checksum.h"
#include "runtime/engine_impl.h"

namespace replayssm {
namespace {

constexpr size_t kMaxSessions = 4096;

Refusal no_session(const std::string& name) {
  return {Refusal::Kind::kUnknownSession, "", concat("no session named \"", name, "\"")};
}

}  // namespace

Refusal not_finished(RequestId id) {
  return {Refusal::Kind::kUnknownRequest, "",
          concat("request ", id, " has not finished, or long ago")};
}

Refusal no_text(RequestId id) {
  return {Refusal::Kind::kConflict, "", concat("request ", id, " has no text: it was cancelled")};
}

// Of the model and its arithmetic: what it says of a fixed text, and the state that it leaves. The
// pools are still empty.
uint64_t EngineImpl::fingerprint() {
  const Model& model = *model_;
  const int64_t length = std::min<int64_t>(48, options_.max_positions);
  std::vector<int32_t> text;
  for (int64_t i = 0; i < length; ++i) {
    text.push_back(static_cast<int32_t>((i + 1) * 2654435761 % model.spec().vocab));
  }
  StepRow row;
  row.phase = Phase::kSweep;
  row.row.n_tokens = static_cast<int32_t>(length);
  row.row.read_slot = row.row.write_slot = row.row.ring_slot = 0;
  for (int32_t i = 0; i * ops::kKvPage < length; ++i) row.pages.push_back(i);
  row.ends_text = true;
  executor_.launch({&row, 1}, {&text, 1}, {});
  const float* logits = executor_.wait().logits;
  const int64_t numbers[] = {model.spec().vocab,
                             std::ssize(model.spec().layers),
                             model.grid().interval,
                             static_cast<int64_t>(model.activation()),
                             static_cast<int64_t>(model.checkpoint()),
                             static_cast<int64_t>(model.ring()),
                             static_cast<int64_t>(draw_.context.isa()),
                             draw_.context.bf16_dot() ? 1 : 0};
  Checksum sum;
  sum.add(numbers, sizeof numbers);
  sum.add(logits, static_cast<size_t>(model.spec().vocab) * sizeof(float));
  std::vector<std::byte> state(
      static_cast<size_t>(executor_.snapshot_bytes(std::ssize(row.pages))));
  executor_.read_snapshot(0, row.pages, state);
  sum.add(state.data(), state.size());
  // An embedding row that the text does not hold may differ still.
  executor_.add_embedding(sum);
  if (options_.test_hooks) {
    executor_.act({Action::Kind::kPoisonCheckpoint, 0, -1, 0, {}});
    executor_.act({Action::Kind::kPoisonRing, 0, -1, 0, {}});
    for (const int32_t page : row.pages) {
      executor_.act({Action::Kind::kPoisonPage, page, -1, 0, {}});
    }
  }
  return sum.value();
}

void EngineImpl::open_tiers() {
  if (options_.host_bytes > 0) host_tier_.emplace(options_.host_bytes);
  if (options_.cache_folder.empty()) return;
  SnapshotFormat format;
  format.fingerprint = fingerprint();
  format.max_positions = options_.max_positions;
  format.state_bytes = [this](int64_t position) {
    return executor_.snapshot_bytes(ops::pages_for(position));
  };
  tier_.emplace(options_.cache_folder, options_.cache_folder_bytes, std::move(format));
  saved_sessions_ = tier_->session_names();
}

StateBytes EngineImpl::read_state(int32_t slot, std::span<const int32_t> pages) const {
  StateBytes state(static_cast<size_t>(executor_.snapshot_bytes(std::ssize(pages))));
  executor_.read_snapshot(slot, pages, state);
  return state;
}

// A snapshot that the cache evicts goes to host memory; what host memory evicts goes to disk.
void EngineImpl::keep_below(const PrefixCache::Evicted& gone) {
  const bool known = host_tier_ ? host_tier_->use(gone.tokens) : tier_ && tier_->has(gone.tokens);
  if (known) return;
  SnapshotFile file{gone.tokens, std::ssize(gone.tokens), read_state(gone.slot, gone.pages)};
  const auto to_disk = [this](const SnapshotFile& f) {
    if (tier_) tier_->keep(f);
  };
  if (!host_tier_) return to_disk(file);
  host_tier_->keep(std::move(file), to_disk);
}

void EngineImpl::keep_all_on_disk() {
  if (!tier_) return;
  if (host_tier_) {
    for (const auto& snapshot : host_tier_->all()) tier_->keep(*snapshot);
    host_tier_.reset();
  }
  for (const auto& snapshot : scheduler_.memory().cache().all()) keep_below(snapshot);
}

// Makes the cache know the state in `file`, if there is room.
void EngineImpl::take_in(const SnapshotFile& file) {
  const auto tokens = std::span(file.tokens).first(static_cast<size_t>(file.position));
  const auto place = scheduler_.import(tokens);
  act(scheduler_.take_actions());
  if (place) executor_.write_snapshot(place->slot, place->pages, file.state);
}

void EngineImpl::fetch_from_below(const GenerationRequest& request) {
  if (!options_.prefix_cache || request.prompt_logprobs >= 0) return;
  const int64_t most = std::ssize(request.prompt) - 1;
  int64_t known = scheduler_.memory().cache().peek(request.prompt, most).position;
  HostTier::Snapshot near;
  if (host_tier_) near = host_tier_->longest(request.prompt, known, most);
  if (near != nullptr) known = near->position;
  std::optional<SnapshotFile> far;
  if (tier_) far = tier_->longest(request.prompt, known, most);
  if (far) {
    take_in(*far);
  } else if (near != nullptr) {
    take_in(*near);
  }
}

// A text with the longest state of it that is known.
SnapshotFile EngineImpl::file_of(std::vector<int32_t> text) const {
  SnapshotFile file;
  const auto hit = scheduler_.memory().cache().peek(text, std::ssize(text));
  file.position = hit.position;
  if (hit.position > 0) file.state = read_state(hit.slot, hit.pages);
  file.tokens = std::move(text);
  return file;
}

std::optional<Refusal> EngineImpl::put_session(const std::string& name, std::vector<int32_t> text) {
  if (name.empty()) return Refusal{Refusal::Kind::kInvalid, "name", "a session needs a name"};
  {
    const std::lock_guard lock(mutex_);
    if (sessions_.size() >= kMaxSessions && !sessions_.contains(name)) {
      return Refusal{Refusal::Kind::kConflict, "",
                     concat(kMaxSessions, " sessions are open; drop one")};
    }
  }
  try {
    if (tier_) tier_->save_session(name, file_of(text));
  } catch (const Error& error) {
    return Refusal{Refusal::Kind::kFailed, "", error.what()};
  }
  const std::lock_guard lock(mutex_);
  if (tier_) saved_sessions_.insert(name);
  sessions_[name] = std::move(text);
  return std::nullopt;
}

std::vector<SessionInfo> EngineImpl::sessions() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, SessionInfo> all;
  for (const std::string& name : saved_sessions_) all[name] = {name, -1, true};
  for (const auto& [name, text] : sessions_) {
    SessionInfo& info = all[name];
    info.name = name;
    info.tokens = std::ssize(text);
  }
  std::vector<SessionInfo> out;
  for (auto& [name, info] : all) out.push_back(std::move(info));
  return out;
}

std::optional<Refusal> EngineImpl::save_session(RequestId id, const std::string& name) {
  return call([this, id, &name]() -> std::optional<Refusal> {
    const auto found = std::ranges::find(finished_, id, &Finished::id);
    if (found == finished_.end()) return not_finished(id);
    if (found->text.empty()) return no_text(id);
    return put_session(name, found->text);
  });
}

std::optional<Refusal> EngineImpl::restore_session(const std::string& name) {
  return call([this, &name]() -> std::optional<Refusal> {
    if (!tier_) {
      const std::lock_guard lock(mutex_);
      if (sessions_.contains(name)) return std::nullopt;
      return no_session(name);
    }
    try {
      std::optional<SnapshotFile> file = tier_->load_session(name);
      if (!file) return no_session(name);
      if (file->position > 0) take_in(*file);
      const std::lock_guard lock(mutex_);
      sessions_[name] = std::move(file->tokens);
      return std::nullopt;
    } catch (const Error& error) {
      return Refusal{Refusal::Kind::kConflict, "", error.what()};
    }
  });
}

std::optional<Refusal> EngineImpl::fork_session(const std::string& from, const std::string& to,
                                                int64_t length) {
  return call([&]() -> std::optional<Refusal> {
    std::vector<int32_t> text;
    {
      const std::lock_guard lock(mutex_);
      const auto session = sessions_.find(from);
      if (session == sessions_.end()) return no_session(from);
      text = session->second;
    }
    if (length < 1 || length > std::ssize(text)) {
      return Refusal{Refusal::Kind::kInvalid, "length",
                     concat(length, " is not in [1, ", text.size(), "]")};
    }
    text.resize(static_cast<size_t>(length));
    return put_session(to, std::move(text));
  });
}

std::optional<Refusal> EngineImpl::drop_session(const std::string& name) {
  return call([this, &name]() -> std::optional<Refusal> {
    bool any = false;
    try {
      any = tier_ && tier_->drop_session(name);
    } catch (const Error& error) {
      return Refusal{Refusal::Kind::kFailed, "", error.what()};
    }
    const std::lock_guard lock(mutex_);
    saved_sessions_.erase(name);
    if (sessions_.erase(name) > 0 || any) return std::nullopt;
    return no_session(name);
  });
}

}  // namespace replayssm
