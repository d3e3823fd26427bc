#include "server/chat/message_parser.h"

#include <algorithm>

#include "core/error.h"

namespace replayssm::server {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

struct CallMarks {
  std::string_view begin, end;
};
constexpr CallMarks kCalls[] = {{"<tool_call>", "</tool_call>"}, {"<TOOLCALL>", "</TOOLCALL>"}};

// Bytes at the text's end that `mark` may begin with.
size_t partial(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

// The length of the text without the blanks at its end.
size_t without_blanks(std::string_view text) { return text.find_last_not_of(kBlanks) + 1; }

}  // namespace

const std::vector<std::string>& chat_marks() {
  static const std::vector<std::string> kMarks = {
      "<think>",    "</think>",    "<tool_call>",     "</tool_call>",
      "<TOOLCALL>", "</TOOLCALL>", "<tool_response>", "</tool_response>",
  };
  return kMarks;
}

MessageParser::MessageParser(Options options)
    : options_(std::move(options)),
      state_(options_.opens_in_reasoning ? State::kReasoning
             : options_.reasoning        ? State::kStart
                                         : State::kContent) {}

std::vector<MessageDelta> MessageParser::push(std::string_view text) {
  rest_ += text;
  std::vector<MessageDelta> out;
  while (advance(out, false)) {
  }
  return out;
}

std::vector<MessageDelta> MessageParser::finish() {
  std::vector<MessageDelta> out;
  while (advance(out, true)) {
  }
  return out;
}

// One move; false if there is none before more text comes.
bool MessageParser::advance(std::vector<MessageDelta>& out, bool last) {
  switch (state_) {
    case State::kStart:
      return start(last);
    case State::kReasoning:
      return reasoning(out, last);
    case State::kAfterReasoning: {
      const size_t n = rest_.find_first_not_of(kBlanks);
      rest_.erase(0, n);
      if (rest_.empty()) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kContent:
      return content(out, last);
    case State::kCall:
      return call(out, last);
  }
  return false;
}

// Moves n bytes of rest_ into a delta.
void MessageParser::emit(std::vector<MessageDelta>& out, MessageDelta::Kind kind, size_t n) {
  if (n == 0) return;
  if (!out.empty() && out.back().kind == kind) {
    out.back().text += rest_.substr(0, n);
  } else {
    out.push_back({kind, rest_.substr(0, n), {}});
  }
  rest_.erase(0, n);
}

bool MessageParser::start(bool last) {
  const size_t begin = std::min(rest_.find_first_not_of(kBlanks), rest_.size());
  const std::string_view text = std::string_view(rest_).substr(begin);
  if (text.starts_with(kThink)) {
    rest_.erase(0, begin + kThink.size());
    state_ = State::kReasoning;
    return true;
  }
  if (!last && kThink.starts_with(text)) return false;
  state_ = State::kContent;
  return true;
}

bool MessageParser::reasoning(std::vector<MessageDelta>& out, bool last) {
  if (!reasoned_) {  // blanks behind <think>
    const size_t n = rest_.find_first_not_of(kBlanks);
    if (n == std::string::npos && !last) return false;
    rest_.erase(0, n);
    reasoned_ = !rest_.empty();
  }
  const size_t end = rest_.find(kThinkEnd);
  if (end != std::string::npos) {
    const size_t n = without_blanks(std::string_view(rest_).substr(0, end));
    emit(out, MessageDelta::Kind::kReasoning, n);
    rest_.erase(0, end - n + kThinkEnd.size());
    state_ = State::kAfterReasoning;
    return true;
  }
  size_t n = rest_.size();
  if (!last) {
    n = without_blanks(std::string_view(rest_).substr(0, n - partial(rest_, kThinkEnd)));
  }
  emit(out, MessageDelta::Kind::kReasoning, n);
  return false;
}

bool MessageParser::content(std::vector<MessageDelta>& out, bool last) {
  size_t keep = 0;
  if (!options_.tools.empty()) {
    size_t at = std::string::npos;
    for (const CallMarks& marks : kCalls) {
      const size_t found = rest_.find(marks.begin);
      if (found < at) {
        at = found;
        opened_ = marks.begin;
      }
      keep = std::max(keep, partial(rest_, marks.begin));
    }
    if (at != std::string::npos) {
      const size_t n = without_blanks(std::string_view(rest_).substr(0, at));
      blanks_ = rest_.substr(n, at - n);
      emit(out, MessageDelta::Kind::kContent, n);
      rest_.erase(0, at - n + opened_.size());
      state_ = State::kCall;
      return true;
    }
    if (!last) {
      emit(out, MessageDelta::Kind::kContent,
           without_blanks(std::string_view(rest_).substr(0, rest_.size() - keep)));
      return false;
    }
    // Blanks behind a call are not content.
    if (called_ && without_blanks(rest_) == 0) rest_.clear();
  }
  emit(out, MessageDelta::Kind::kContent, rest_.size());
  return false;
}

bool MessageParser::call(std::vector<MessageDelta>& out, bool last) {
  const auto* marks = std::find_if(std::begin(kCalls), std::end(kCalls),
                                   [&](const CallMarks& m) { return m.begin == opened_; });
  const size_t end = rest_.find(marks->end);
  if (end == std::string::npos && !last) return false;
  const auto calls = parse_tool_calls(std::string_view(rest_).substr(0, end), options_.tools);
  const size_t taken = end == std::string::npos ? rest_.size() : end + marks->end.size();
  if (calls) {
    for (const ToolCall& one : *calls) out.push_back({MessageDelta::Kind::kToolCall, "", one});
    rest_.erase(0, taken);
    called_ = true;
  } else {
    // As it was written; what follows may hold a call again.
    rest_.insert(0, concat(blanks_, marks->begin));
    emit(out, MessageDelta::Kind::kContent, blanks_.size() + marks->begin.size() + taken);
  }
  state_ = State::kContent;
  return !rest_.empty() || last;
}

}  // namespace replayssm::server
