#include "server/apis/item_answer.h"

#include "server/answer/chat_answer.h"

namespace replayssm::server {

ItemAnswer::ItemAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
                       const ServedModel& model, bool parallel_calls)
    : EngineAnswer(std::move(head), {std::move(source)}, std::move(hooks)),
      parser_(parser_options(request, model)),
      parallel_calls_(parallel_calls) {}

void ItemAnswer::close(std::string* out) {
  if (std::exchange(open_, false) && head().stream) on_item_end(items_.size() - 1, out);
}

void ItemAnswer::take(const std::vector<MessageDelta>& deltas, std::string* out) {
  for (const MessageDelta& delta : deltas) {
    if (n_calls_ > 0 && !parallel_calls_) return;
    const bool call = delta.kind == MessageDelta::Kind::kToolCall;
    if (!open_ || call || items_.back().kind != delta.kind) {
      close(out);
      items_.push_back({delta.kind, "", delta.call});
      open_ = true;
      if (head().stream) on_item(items_.size() - 1, out);
    }
    if (call) {
      ++n_calls_;
      close(out);
      continue;
    }
    items_.back().text += delta.text;
    if (head().stream) on_text(items_.size() - 1, delta.text, out);
  }
}

void ItemAnswer::on_piece(size_t, const TextPiece& piece, std::string* out) {
  take(parser_.push(piece.text), out);
}

void ItemAnswer::on_end(size_t, const ChoiceEnd& end, std::string* out) {
  take(parser_.finish(end.cut()), out);
  reason_ = end.reason;
  stop_ = end.stop;
  close(out);
}

void append_named_event(std::string* out, const Json& data) {
  *out += concat("event: ", data.at("type").get_ref<const std::string&>(), "\n");
  append_event(out, data);
}

}  // namespace replayssm::server
