#include "server/request/unserved.h"

#include "server/api_error.h"

namespace replayssm::server {
namespace {

constexpr std::string_view kSamplers = "use temperature, top_k, top_p and min_p";
constexpr std::string_view kPenalties =
    "use repetition_penalty, presence_penalty or frequency_penalty";
constexpr std::string_view kNoBeams = "use n; there is no beam search";
constexpr std::string_view kNoAdapters = "the served model has no adapters; name it in model";
constexpr std::string_view kThinking = "use enable_thinking or reasoning_effort";

constexpr UnservedField kFields[] = {
    {"allowed_token_ids", "", "use guided_choice, guided_regex or logit_bias"},
    {"bad_words", "[]", "use logit_bias"},
    {"bad_words_ids", "[]", "use logit_bias"},
    {"logits_processors", "[]", "use logit_bias or guided_grammar"},
    {"custom_logit_processor", "", "use logit_bias or guided_grammar"},
    {"use_beam_search", "false", kNoBeams},
    {"num_beams", "1", kNoBeams},
    {"length_penalty", "1", kNoBeams},
    {"early_stopping", "false", kNoBeams},
    {"typical_p", "1", kSamplers},
    {"tfs_z", "1", kSamplers},
    {"top_a", "0", kSamplers},
    {"top_n_sigma", "-1", kSamplers},
    {"epsilon_cutoff", "0", kSamplers},
    {"eta_cutoff", "0", kSamplers},
    {"mirostat", "0", kSamplers},
    {"mirostat_mode", "0", kSamplers},
    {"xtc_probability", "0", kSamplers},
    {"dynatemp_range", "0", kSamplers},
    {"samplers", "", kSamplers},
    {"sampler_order", "", kSamplers},
    {"do_sample", "true", "use temperature 0"},
    {"watermark", "false", kSamplers},
    {"dry_multiplier", "0", kPenalties},
    {"no_repeat_ngram_size", "0", kPenalties},
    {"encoder_repetition_penalty", "1", kPenalties},
    {"n_predict", "", "use max_tokens"},
    {"max_new_tokens", "", "use max_tokens"},
    {"max_length", "", "use max_tokens"},
    {"min_new_tokens", "0", "use min_tokens"},
    {"min_length", "0", "use min_tokens"},
    {"stop_sequences", "[]", "use stop"},
    {"stop_regex", "", "use stop"},
    {"no_stop_trim", "false", "use stop_token_ids, whose tokens are part of the answer's count"},
    {"regex", "", "use guided_regex"},
    {"ebnf", "", "use guided_grammar"},
    {"prompt_embeds", "", "use prompt"},
    {"truncate", "", "send a shorter prompt"},
    {"truncate_prompt_tokens", "", "send a shorter prompt"},
    {"lora", "[]", kNoAdapters},
    {"lora_path", "", kNoAdapters},
    {"lora_request", "", kNoAdapters},
    {"adapter_id", "", kNoAdapters},
    {"n_probs", "0", "use logprobs"},
    {"return_token_ids", "false", "use POST /tokenize"},
    {"return_tokens_as_token_ids", "false", "use POST /tokenize"},
    {"thinking_budget", "", kThinking},
    {"thinking_token_budget", "", kThinking},
    {"reasoning_budget", "", kThinking},
    {"thinking", "", kThinking, true},
    {"reasoning", "", kThinking, true},
    {"include_reasoning", "true", kThinking, true},
    {"separate_reasoning", "true", kThinking, true},
    {"chat_template", "", "start the server with --chat-template", true},
    {"documents", "[]", "use chat_template_kwargs", true},
    {"add_special_tokens", "false", "the template writes them", true},
    {"echo", "false", "use /v1/completions", true},
    {"suffix", "\"\"", "use /v1/completions", true},
    {"web_search_options", "", "send tools, which the client runs", true},
};

}  // namespace

std::span<const UnservedField> unserved_fields() { return kFields; }

void refuse_unserved(Fields& fields, bool chat) {
  for (const UnservedField& field : kFields) {
    if (field.chat_alone && !chat) continue;
    const std::string name(field.name);
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    if (!field.neutral.empty() && *value == parse_json(field.neutral)) continue;
    refuse(fields.path_of(name), concat("is not served here; ", field.instead));
  }
}

}  // namespace replayssm::server
