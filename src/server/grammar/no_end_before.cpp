#include <algorithm>

#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

class NoEndBefore final : public TokenConstraint {
 public:
  NoEndBefore(int64_t n, std::vector<int32_t> ends, std::unique_ptr<TokenConstraint> inner)
      : left_(n), ends_(std::move(ends)), inner_(std::move(inner)) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<NoEndBefore>(left_, ends_, inner_ ? inner_->clone() : nullptr);
  }
  void allowed(std::span<uint8_t> allowed) override {
    if (inner_) {
      inner_->allowed(allowed);
    } else {
      std::fill(allowed.begin(), allowed.end(), uint8_t{1});
    }
    if (left_ <= 0) return;
    for (const int32_t id : ends_) {
      if (static_cast<size_t>(id) < allowed.size()) allowed[static_cast<size_t>(id)] = 0;
    }
  }
  bool accept(int32_t id) override {
    if (left_ > 0 && std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return false;
    if (inner_ && !inner_->accept(id)) return false;
    --left_;
    return true;
  }

 private:
  int64_t left_;
  std::vector<int32_t> ends_;
  std::unique_ptr<TokenConstraint> inner_;  // null: all else is allowed
};

}  // namespace

ConstraintPtr no_end_before(int64_t n, std::vector<int32_t> ends, const ConstraintPtr& inner) {
  return std::make_shared<NoEndBefore>(n, std::move(ends), inner ? inner->clone() : nullptr);
}

}  // namespace replayssm::server
