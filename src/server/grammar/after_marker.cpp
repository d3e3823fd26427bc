#include <algorithm>

#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

class AfterMarker final : public TokenConstraint {
 public:
  AfterMarker(int32_t marker, std::unique_ptr<TokenConstraint> inner, bool seen)
      : marker_(marker), inner_(std::move(inner)), seen_(seen) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<AfterMarker>(marker_, inner_->clone(), seen_);
  }
  void allowed(std::span<uint8_t> allowed) override {
    if (seen_) {
      inner_->allowed(allowed);
    } else {
      std::fill(allowed.begin(), allowed.end(), uint8_t{1});
    }
  }
  bool accept(int32_t id) override {
    if (seen_) return inner_->accept(id);
    seen_ = id == marker_;
    return true;
  }

 private:
  const int32_t marker_;
  std::unique_ptr<TokenConstraint> inner_;
  bool seen_;
};

}  // namespace

ConstraintPtr after_marker(int32_t marker, ConstraintPtr inner) {
  return std::make_shared<AfterMarker>(marker, inner->clone(), false);
}

}  // namespace replayssm::server
