#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text_file.h"
#include "runtime/draft.h"

namespace replayssm {
namespace {

constexpr int64_t kLongest = 8;
constexpr int64_t kShortest = 2;

class NgramDrafter final : public Drafter {
 public:
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int32_t k) override {
    const int64_t size = static_cast<int64_t>(tokens.size());
    int64_t best_length = 0;
    int64_t best_end = 0;  // what followed the match starts here
    for (int64_t end = size - 1; end >= kShortest && best_length < kLongest; --end) {
      const int64_t limit = std::min(kLongest, end);
      int64_t length = 0;
      while (length < limit && tokens[end - 1 - length] == tokens[size - 1 - length]) ++length;
      if (length >= kShortest && length > best_length) {
        best_length = length;
        best_end = end;
      }
    }
    if (best_length == 0) return {};
    // Where what followed reaches the end of the text, the text repeats: so do the drafts.
    std::vector<int32_t> drafts;
    for (int64_t i = best_end; static_cast<int32_t>(drafts.size()) < k; ++i) {
      drafts.push_back(i < size ? tokens[i] : drafts[static_cast<size_t>(i - size)]);
    }
    return drafts;
  }
};

class ScriptDrafter final : public Drafter {
 public:
  explicit ScriptDrafter(std::vector<std::vector<int32_t>> steps) : steps_(std::move(steps)) {}
  ScriptDrafter(const std::string& file, int64_t vocab) {
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(read_text_file(file));
    } catch (const nlohmann::json::exception& e) {
      fail(file, ": not JSON: ", e.what());
    }
    if (!json.is_array()) fail(file, ": a draft script is a list of lists of ids");
    for (const auto& step : json) {
      if (!step.is_array()) fail(file, ": step ", steps_.size(), " is not a list of ids");
      steps_.emplace_back();
      for (const auto& id : step) {
        if (!id.is_number_integer() || id < 0 || id >= vocab) {
          fail(file, ": step ", steps_.size() - 1, ": ", id.dump(), " is not an id in [0, ", vocab,
               ")");
        }
        steps_.back().push_back(id.get<int32_t>());
      }
    }
  }

  std::vector<int32_t> propose(std::span<const int32_t>, int32_t k) override {
    if (next_ >= steps_.size()) return {};
    std::vector<int32_t> ids = steps_[next_++];
    if (ids.size() > static_cast<size_t>(k)) ids.resize(static_cast<size_t>(k));
    return ids;
  }

 private:
  std::vector<std::vector<int32_t>> steps_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter() { return std::make_unique<NgramDrafter>(); }

std::unique_ptr<Drafter> make_script_drafter(const std::string& file, int64_t vocab) {
  return std::make_unique<ScriptDrafter>(file, vocab);
}

std::unique_ptr<Drafter> make_script_drafter(std::vector<std::vector<int32_t>> steps) {
  return std::make_unique<ScriptDrafter>(std::move(steps));
}

}  // namespace replayssm
