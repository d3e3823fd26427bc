// Responses that were asked to be stored: to be read again, and to be gone on from.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/json.h"
#include "server/http/request_memory.h"

namespace replayssm::server {

// Keeps the last used within a number and a sum of bytes; what is larger than that alone is not
// kept. Gives way where the requests' memory is short. May be called by many threads at once.
class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 1024;
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  // At most an eighth of `memory`, which may be null.
  explicit ResponseStore(std::shared_ptr<RequestMemory> memory, size_t most_bytes = kMaxBytes);

  // `messages`: the chat up to its end, without instructions.
  void put(const std::string& id, const Json& response, const Json& messages);
  std::optional<Json> response(const std::string& id);
  std::optional<Json> messages(const std::string& id);
  bool erase(const std::string& id);
  size_t bytes() const;

 private:
  struct Kept {
    std::string id;
    std::string response;
    std::string messages;
    size_t bytes() const { return id.size() + response.size() + messages.size(); }
  };
  std::optional<Json> read(const std::string& id, std::string Kept::* text);
  void drop(std::list<Kept>::iterator kept);

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // last used first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_id_;
  size_t bytes_ = 0;
  MemoryShare share_;
};

}  // namespace replayssm::server
