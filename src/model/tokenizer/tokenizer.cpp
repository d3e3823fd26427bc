#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/text_file.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/word_cache.h"

namespace replayssm::model {
namespace {

constexpr size_t kMaxTextBytes = 1 << 30;  // places in a text are 32-bit in ICU and in BPE
constexpr size_t kMaxScratches = 64;       // kept for the next callers

// What one call of encode() works with.
struct Scratch {
  RegexScratch regex;
  WordCache cache;
};

// Scratches not in use. A call takes one out, so no two threads share one.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }

  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < kMaxScratches) free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerSpec parsed)
      : spec(std::move(parsed)),
        bpe(spec.byte_ids, spec.merges, spec.unknown, spec.fuse_unknown),
        pre_tokenizer(spec.pre_tokenizer),
        raw_added(spec.added, false, spec.normalization),
        normalized_added(spec.added, true, spec.normalization) {
    spec.merges = {};
    ids.reserve(spec.tokens.size());
    bytes.resize(spec.tokens.size());
    special.resize(spec.tokens.size());
    for (size_t i = 0; i < spec.tokens.size(); ++i) {
      const std::string& token = spec.tokens[i];
      if (token.empty()) continue;
      const auto id = static_cast<int32_t>(i);
      ids.emplace(token, id);
      // The model's tokens are byte characters; an added token is the text it was found as.
      std::optional<std::string> raw;
      if (spec.in_model[i]) raw = from_byte_chars(token);
      bytes[i] = raw ? std::move(*raw) : token;
      if (spec.ignore_merges && spec.in_model[i]) words.emplace(bytes[i], id);
    }
    for (const AddedToken& token : spec.added) {
      if (token.special && !special[token.id]) special_ids.push_back(token.id);
      if (token.special) special[token.id] = true;
    }
    std::sort(special_ids.begin(), special_ids.end());
  }

  // Encodes text that holds no token to be found before normalization.
  void encode_text(std::string_view text, bool parse_special, Scratch& scratch,
                   std::vector<int32_t>& out) const;

  TokenizerSpec spec;  // its merges are in `bpe` alone
  Bpe bpe;
  PreTokenizer pre_tokenizer;
  AddedTokenFinder raw_added;
  AddedTokenFinder normalized_added;
  std::unordered_map<std::string_view, int32_t> ids;    // of spec.tokens
  std::unordered_map<std::string_view, int32_t> words;  // with ignore_merges: by bytes
  std::vector<std::string> bytes;
  std::vector<bool> special;
  std::vector<int32_t> special_ids;
  mutable ScratchPool scratches;
};

namespace {

// Runs BPE on each word.
template <typename State>
class Encoder final : public WordSink {
 public:
  Encoder(const State& state, WordCache& cache, std::vector<int32_t>& out)
      : state_(state), cache_(cache), out_(out) {}

  void take(std::string_view word) override {
    if (state_.spec.ignore_merges) {
      const auto it = state_.words.find(word);
      if (it != state_.words.end()) return out_.push_back(it->second);
    }
    if (word.size() > WordCache::kMaxBytes) return state_.bpe.encode(word, out_);
    const std::span<const int32_t> known = cache_.find(word);
    if (!known.empty()) {
      out_.insert(out_.end(), known.begin(), known.end());
      return;
    }
    const size_t begin = out_.size();
    state_.bpe.encode(word, out_);
    const std::span<const int32_t> fresh = std::span(out_).subspan(begin);
    if (!fresh.empty() && fresh.size() <= WordCache::kMaxTokens) cache_.put(word, fresh);
  }

 private:
  const State& state_;
  WordCache& cache_;
  std::vector<int32_t>& out_;
};

}  // namespace

void Tokenizer::State::encode_text(std::string_view text, bool parse_special, Scratch& scratch,
                                   std::vector<int32_t>& out) const {
  std::string buffer;
  const std::string_view normalized = normalize(spec.normalization, text, buffer);
  Encoder encoder(*this, scratch.cache, out);
  if (normalized_added.empty()) return pre_tokenizer.split(normalized, scratch.regex, encoder);
  std::vector<AddedTokenFinder::Piece> pieces;
  normalized_added.split(normalized, parse_special, pieces);
  for (const AddedTokenFinder::Piece& piece : pieces) {
    if (piece.id == AddedTokenFinder::kText) {
      pre_tokenizer.split(piece.text, scratch.regex, encoder);
    } else {
      out.push_back(piece.id);
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) {
  return parse(read_text_file(path, kMaxTokenizerJsonBytes), path);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  return Tokenizer(std::make_unique<State>(parse_tokenizer_json(json, name)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (text.size() > kMaxTextBytes) {
    fail("tokenizer: a text of ", text.size(), " bytes is longer than the ", kMaxTextBytes,
         " allowed");
  }
  std::string valid;
  if (!is_valid_utf8(text)) {
    valid = to_valid_utf8(text);
    text = valid;
  }
  std::vector<int32_t> out;
  out.reserve(text.size() / 3);
  std::vector<AddedTokenFinder::Piece> pieces;
  state_->raw_added.split(text, parse_special, pieces);
  std::unique_ptr<Scratch> scratch = state_->scratches.take();
  for (const AddedTokenFinder::Piece& piece : pieces) {
    if (piece.id == AddedTokenFinder::kText) {
      state_->encode_text(piece.text, parse_special, *scratch, out);
    } else {
      out.push_back(piece.id);
    }
  }
  state_->scratches.give_back(std::move(scratch));
  return out;
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> out = state_->spec.prefix;
  const std::vector<int32_t> ids = encode(text);
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), state_->spec.suffix.begin(), state_->spec.suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) out += token_bytes(id);
  }
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return state_->bytes[id];
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto it = state_->ids.find(token);
  if (it == state_->ids.end()) return std::nullopt;
  return it->second;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(state_->spec.tokens.size()); }

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->special[id];
}

std::span<const int32_t> Tokenizer::special_ids() const { return state_->special_ids; }
std::span<const int32_t> Tokenizer::prefix_ids() const { return state_->spec.prefix; }
std::span<const int32_t> Tokenizer::suffix_ids() const { return state_->spec.suffix; }

}  // namespace replayssm::model
