#include "server/apis/response_store.h"

namespace replayssm::server {

void ResponseStore::put(const std::string& id, const Json& response, const Json& messages) {
  Kept kept{id, dump_json(response), dump_json(messages)};
  if (kept.bytes() > most_bytes_) return;  // it would drive out all others, and itself
  const std::lock_guard lock(mutex_);
  bytes_ += kept.bytes();
  kept_.push_front(std::move(kept));
  by_id_[id] = kept_.begin();
  while (bytes_ > most_bytes_ || kept_.size() > kMaxResponses) drop(std::prev(kept_.end()));
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
  by_id_.erase(kept->id);
  kept_.erase(kept);
}

}  // namespace replayssm::server
