#include "server/chat/message_parser.h"

#include <algorithm>

#include "server/chat/call_text.h"

namespace replayssm::server {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

}  // namespace

MessageParser::MessageParser(Options options)
    : options_(std::move(options)),
      state_(options_.opens_in_reasoning ? State::kReasoning
             : options_.reasoning        ? State::kStart
                                         : State::kContent) {}

std::vector<MessageDelta> MessageParser::push(std::string_view text) {
  rest_ += text;
  std::vector<MessageDelta> out;
  while (advance(out, TextEnd::kMore)) {
  }
  return out;
}

std::vector<MessageDelta> MessageParser::finish(bool cut) {
  read_again_ = 0;
  std::vector<MessageDelta> out;
  while (advance(out, cut ? TextEnd::kCut : TextEnd::kEnded)) {
  }
  return out;
}

// One move; false if there is none before more text comes.
bool MessageParser::advance(std::vector<MessageDelta>& out, TextEnd end) {
  switch (state_) {
    case State::kStart:
      return start(end);
    case State::kReasoning:
      return reasoning(out, end);
    case State::kAfterReasoning: {
      const size_t n = rest_.find_first_not_of(kBlanks);
      rest_.erase(0, n);
      if (rest_.empty()) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kContent:
      return content(out, end);
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
  if (kind == MessageDelta::Kind::kContent) line_start_ = false;
  rest_.erase(0, n);
  searched_ = 0;
}

bool MessageParser::start(TextEnd end) {
  const size_t begin = std::min(rest_.find_first_not_of(kBlanks), rest_.size());
  const std::string_view text = std::string_view(rest_).substr(begin);
  if (text.starts_with(kThink)) {
    rest_.erase(0, begin + kThink.size());
    state_ = State::kReasoning;
    return true;
  }
  if (end == TextEnd::kMore && kThink.starts_with(text)) return false;
  state_ = State::kContent;
  return true;
}

// The calls at a place of rest_. What stays open is not read again before it has grown by a part of
// its length: the time is linear in the text, but for that factor.
CallReading MessageParser::read_at(size_t at, TextEnd end) {
  CallReading reading;
  reading.state = CallReading::State::kOpen;
  const size_t n = rest_.size() - at;
  if (n < read_again_) return reading;
  reading = read_calls(std::string_view(rest_).substr(at), options_.tools, end);
  const bool open = reading.state == CallReading::State::kOpen;
  read_again_ = open ? n + n / 64 : 0;
  return reading;
}

// The reasoning's end is the answer's: if calls, and nothing else, stand there, they are handed on.
void MessageParser::end_reasoning(std::vector<MessageDelta>& out, TextEnd end) {
  const std::string_view rest = rest_;
  std::vector<ToolCall> calls;
  size_t first = rest.size();  // of `calls`
  const auto place_from = [&](size_t from) {
    CallPlace place;
    if (!options_.tools.empty()) place = find_call(rest.substr(from), false, false);
    place.at =
        std::min(place.at == std::string_view::npos ? rest.size() : from + place.at, rest.size());
    return place;
  };
  for (CallPlace place = place_from(0); place.at < rest.size();) {
    CallReading reading = read_calls(rest.substr(place.at), options_.tools, end);
    const bool found = reading.state == CallReading::State::kCalls;
    const size_t behind = place.at + (found ? reading.length : place.length);
    const CallPlace next = place_from(behind);
    const size_t text = std::min(rest.find_first_not_of(kBlanks, behind), rest.size());
    if (found) {
      first = calls.empty() ? place.at : first;
      std::move(reading.calls.begin(), reading.calls.end(), std::back_inserter(calls));
    }
    if (!found || text < next.at) {
      calls.clear();
      first = rest.size();
    }
    place = next;
  }
  emit(out, MessageDelta::Kind::kReasoning,
       calls.empty() ? rest_.size() : trimmed_end(rest.substr(0, first)));
  for (ToolCall& call : calls) out.push_back({MessageDelta::Kind::kToolCall, "", std::move(call)});
  rest_.clear();
}

bool MessageParser::reasoning(std::vector<MessageDelta>& out, TextEnd end) {
  const bool more = end == TextEnd::kMore;
  if (!reasoned_) {  // blanks behind <think>
    const size_t n = rest_.find_first_not_of(kBlanks);
    if (n == std::string::npos && more) return false;
    rest_.erase(0, n);
    reasoned_ = !rest_.empty();
  }
  const size_t think_end = rest_.find(kThinkEnd, searched_);
  if (think_end != std::string::npos) {
    const size_t n = trimmed_end(std::string_view(rest_).substr(0, think_end));
    emit(out, MessageDelta::Kind::kReasoning, n);
    rest_.erase(0, think_end - n + kThinkEnd.size());
    read_again_ = 0;
    state_ = State::kAfterReasoning;
    return true;
  }
  searched_ = rest_.size() - std::min(rest_.size(), kThinkEnd.size() - 1);
  if (!more) {
    end_reasoning(out, end);
    return false;
  }
  CallPlace place;
  if (!options_.tools.empty()) place = find_call(rest_, false, false);
  if (place.at != std::string::npos) {
    const size_t before = trimmed_end(std::string_view(rest_).substr(0, place.at));
    const CallReading reading = read_at(place.at, end);
    size_t n = before;
    if (reading.state == CallReading::State::kNone) n = place.at + place.length;
    if (reading.state == CallReading::State::kCalls) {
      // It was none if anything but another call follows.
      const size_t behind = place.at + reading.length;
      const size_t next = rest_.find_first_not_of(kBlanks, behind);
      const CallPlace other = find_call(std::string_view(rest_).substr(behind), false, false);
      const size_t mark =
          other.at != std::string::npos ? behind + other.at : rest_.size() - other.partial;
      if (next != std::string::npos && next < mark) {
        n = trimmed_end(std::string_view(rest_).substr(0, behind));
      }
    }
    emit(out, MessageDelta::Kind::kReasoning, n);
    return n > before;
  }
  const size_t keep = std::max(partial_mark(rest_, kThinkEnd), place.partial);
  emit(out, MessageDelta::Kind::kReasoning,
       trimmed_end(std::string_view(rest_).substr(0, rest_.size() - keep)));
  return false;
}

bool MessageParser::content(std::vector<MessageDelta>& out, TextEnd end) {
  if (options_.tools.empty()) {
    emit(out, MessageDelta::Kind::kContent, rest_.size());
    return false;
  }
  const CallPlace place = find_call(rest_, options_.bare_calls, line_start_);
  if (place.at == std::string::npos) {
    if (end == TextEnd::kMore) {
      emit(out, MessageDelta::Kind::kContent,
           trimmed_end(std::string_view(rest_).substr(0, rest_.size() - place.partial)));
      return false;
    }
    // Blanks behind a call are not content.
    if (called_ && line_start_ && trimmed_end(rest_) == 0) rest_.clear();
    emit(out, MessageDelta::Kind::kContent, rest_.size());
    return false;
  }
  const size_t before = trimmed_end(std::string_view(rest_).substr(0, place.at));
  CallReading reading = read_at(place.at, end);
  switch (reading.state) {
    case CallReading::State::kOpen:
      emit(out, MessageDelta::Kind::kContent, before);
      return false;
    case CallReading::State::kNone:  // as it was written; what follows may hold a call
      emit(out, MessageDelta::Kind::kContent, place.at + place.length);
      return !rest_.empty();
    case CallReading::State::kCalls:
      break;
  }
  emit(out, MessageDelta::Kind::kContent, before);
  rest_.erase(0, place.at - before + reading.length);
  for (ToolCall& one : reading.calls) {
    out.push_back({MessageDelta::Kind::kToolCall, "", std::move(one)});
  }
  called_ = true;
  line_start_ = true;
  return !rest_.empty();
}

}  // namespace replayssm::server
