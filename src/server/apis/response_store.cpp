#include "server/apis/response_store.h"

#include <algorithm>

namespace replayssm::server {
namespace {

size_t eighth_of(const std::shared_ptr<RequestMemory>& memory) {
  return memory == nullptr ? SIZE_MAX : static_cast<size_t>(memory->limit() / 8);
}

}  // namespace

ResponseStore::ResponseStore(std::shared_ptr<RequestMemory> memory, size_t most_bytes)
    : most_bytes_(std::min(most_bytes, eighth_of(memory))), share_(std::move(memory)) {}

void ResponseStore::put(const std::string& id, const Json& response, const Json& messages) {
  Kept kept{id, dump_json(response), dump_json(messages)};
  if (kept.bytes() > most_bytes_) return;  // it would drive out all others, and itself
  const std::lock_guard lock(mutex_);
  while (bytes_ + kept.bytes() > most_bytes_ || kept_.size() >= kMaxResponses ||
         !share_.set(static_cast<int64_t>(bytes_ + kept.bytes()))) {
    if (kept_.empty()) return;
    drop(std::prev(kept_.end()));
  }
  bytes_ += kept.bytes();
  kept_.push_front(std::move(kept));
  by_id_[id] = kept_.begin();
}

std::optional<Json> ResponseStore::response(const std::string& id) {
  return read(id, &Kept::response);
}

std::optional<Json> ResponseStore::messages(const std::string& id) {
  return read(id, &Kept::messages);
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return false;
  drop(at->second);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::optional<Json> ResponseStore::read(const std::string& id, std::string Kept::* text) {
  std::string json;
  {
    const std::lock_guard lock(mutex_);
    const auto at = by_id_.find(id);
    if (at == by_id_.end()) return {};
    kept_.splice(kept_.begin(), kept_, at->second);
    json = (*at->second).*text;
  }
  return parse_json(json);
}

void ResponseStore::drop(std::list<Kept>::iterator kept) {
  bytes_ -= kept->bytes();
  share_.set(static_cast<int64_t>(bytes_));
  by_id_.erase(kept->id);
  kept_.erase(kept);
}

}  // namespace replayssm::server
