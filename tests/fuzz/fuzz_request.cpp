// Any bytes as the body of a request: either an error of one line, or a request within bounds.
#include <cstdlib>
#include <string>

#include "server/api_error.h"
#include "server/grammar/schema_check.h"
#include "server/request/chat.h"
#include "server/request/completion.h"

using namespace replayssm;
using namespace replayssm::server;

namespace {

constexpr int64_t kMaxPositions = 64;

void check(bool good) {
  if (!good) std::abort();
}

void check_common(const CommonRequest& common, const ServedModel& model) {
  const GenerationRequest& engine = common.engine;
  check(engine.n >= 1 && engine.n <= kMaxChoices);
  check(engine.sampling.temperature >= 0 && engine.sampling.top_p > 0);
  check(*common.max_tokens >= 0 && *common.max_tokens < kMaxPositions);
  for (const auto& [id, bias] : engine.penalties.bias) check(id >= 0 && id < model.vocab);
  for (const int32_t id : engine.stop_ids) check(id >= 0 && id < model.vocab);
  for (const auto& stop : common.stops) check(!stop.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ServedModel kModel =
      load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, kMaxPositions, {4082});
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    const Json body = parse_json(text);
    if (data[0] % 3 == 0) {
      const CompletionRequest request = parse_completion(body, kModel, true);
      check_common(request.common, kModel);
      check(!request.prompts.empty());
      for (const auto& prompt : request.prompts) {
        check(!prompt.empty() && static_cast<int64_t>(prompt.size()) < kMaxPositions);
      }
    } else if (data[0] % 3 == 1) {
      const ChatRequest request = parse_chat(body, kModel, false);
      check_common(request.common, kModel);
      check(!request.prompt.ids.empty());
    } else {
      Warnings warnings;
      const Json schema = checked_schema(body, "schema", warnings);
      // What passed once passes again, unchanged.
      check(checked_schema(schema, "schema", warnings) == schema);
    }
  } catch (const Error& e) {
    check(std::string(e.what()).find('\n') == std::string::npos);
  }
  return 0;
}
