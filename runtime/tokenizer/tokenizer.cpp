#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/text_file.h"
#include "runtime/tokenizer/added.h"
#include "runtime/tokenizer/bpe/bpe.h"
#include "runtime/tokenizer/declared.h"
#include "runtime/tokenizer/decoder.h"
#include "runtime/tokenizer/document.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pretokenizer/pretokenizer.h"
#include "runtime/tokenizer/template.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {
namespace {

// The largest that are known have 33 MB.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

nlohmann::json parse(std::string_view json, const std::string& name) {
  try {
    return nlohmann::json::parse(json);
  } catch (const nlohmann::json::parse_error& error) {
    fail("{}: not JSON: what is at byte {} does not fit", name, error.byte);
  } catch (const nlohmann::json::exception& error) {  // a number that no double holds
    fail("{}: not JSON: {}", name, printable(error.what()));
  }
}

// Takes a tree apart from its leaves, for which no memory is needed, as the tree's own destructor would: where the
// system has none left, that would end the program.
void take_apart(nlohmann::json& tree, int depth) {
  constexpr int kDeepest = 64;  // what is nested deeper is left to the destructor
  const auto apart = [depth](nlohmann::json& part) {
    if (part.is_structured() && depth < kDeepest) take_apart(part, depth + 1);
  };
  if (auto* const list = tree.get_ptr<nlohmann::json::array_t*>()) {
    for (nlohmann::json& part : *list) apart(part);
    list->clear();
  } else if (auto* const object = tree.get_ptr<nlohmann::json::object_t*>()) {
    for (auto& [key, part] : *object) apart(part);
    object->clear();
  }
}

// Returns `text`, or what is left of it without `guard`, which is kept in `storage`.
std::string_view without(std::string_view text, std::string_view guard, std::string& storage) {
  if (guard.empty() || text.find(guard) == std::string_view::npos) return text;
  storage.clear();
  for (std::size_t at = 0; (at = text.find(guard)) != std::string_view::npos;) {
    storage += text.substr(0, at);
    text.remove_prefix(at + guard.size());
  }
  return storage += text;
}

// A component that is absent or null does nothing.
template <class Component>
Component read(const Field& document, const char* key) {
  const auto field = document.find(key);
  return field ? Component(*field) : Component();
}

}  // namespace

struct Tokenizer::Impl {
  // directory: what else declares tokens there; null for none.
  Impl(const Field& document, const std::filesystem::path* directory)
      : normalizer(read<Normalizer>(document, "normalizer")),
        pre_tokenizer(read<PreTokenizer>(document, "pre_tokenizer")),
        bpe(document.at("model"), pre_tokenizer.byte_level()),
        around(read<Template>(document, "post_processor")),
        decoder(read<Decoder>(document, "decoder")) {
    std::vector<AddedToken> tokens;
    if (const auto field = document.find("added_tokens")) tokens = read_added_tokens(*field, bpe);
    std::vector<AddedToken> declared;
    if (directory) declared = declared_tokens(*directory, tokens);
    added = AddedTokens(std::move(tokens), declared, bpe, normalizer);
    const auto* lost = bpe.unreachable([&](std::string_view text) { return added.find(text) != nullptr; });
    if (lost) {
      fail(
          "{}: the tokenizer has no merges (model.merges is empty), yet entries such as '{}' that need them; convert "
          "the model's tokenizer again",
          document.where(), printable(*lost));
    }
  }

  TokenId size() const { return std::max(bpe.size(), added.size()); }

  // Returns whether the text has itself begun with what is put before every text.
  bool begins_with_bos(const std::vector<TokenId>& tokens) const {
    return !around.before.empty() && !tokens.empty() && tokens.front() == around.before.front();
  }

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokens added;
  Template around;
  Decoder decoder;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer::Tokenizer(const std::filesystem::path& directory) {
  const std::string name = (directory / "tokenizer.json").string();
  std::error_code error;
  if (!std::filesystem::exists(name, error)) {
    fail("{}: is not there; a model directory holds its tokenizer as tokenizer.json", name);
  }
  struct Document {
    nlohmann::json tree;
    ~Document() { take_apart(tree, 0); }
  } const document{parse(offload::read_file_bytes("", name, most_bytes), name)};
  impl_ = std::make_unique<Impl>(Field(document.tree, name), &directory);
}

Tokenizer::Tokenizer(const TokenizerDocument& document)
    : Tokenizer(std::make_unique<Impl>(Field(document.json, document.name), nullptr)) {}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(TokenizerDocument{parse(json, name), name});
}

// Added tokens are found in the text as it came, then, between those, in normalized text; what remains is words.
std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special, std::string_view guard) const {
  std::string repaired, unguarded;
  if (valid_utf8_prefix(text) != text.size()) {
    append_valid_utf8(text, /*keep_tail=*/false, repaired);
    text = repaired;
  }

  std::vector<std::int32_t> tokens;
  if (special) tokens = impl_->around.before;
  Bpe::Encoder encoder(impl_->bpe);
  PreTokenizer::Run words(impl_->pre_tokenizer, [&](std::string_view word) { encoder.encode(word, tokens); });

  impl_->added.raw().split(text, [&](std::size_t begin, std::size_t end, TokenId added) {
    if (added >= 0) return tokens.push_back(added);
    std::string_view section = text.substr(begin, end - begin);
    std::string normalized;
    if (!impl_->normalizer.empty()) section = normalized = impl_->normalizer.apply(section);
    impl_->added.normalized().split(section, [&](std::size_t first, std::size_t last, TokenId id) {
      if (id >= 0) return tokens.push_back(id);
      words.split(without(section.substr(first, last - first), guard, unguarded), begin == 0 && first == 0);
    });
  });

  if (special) tokens.insert(tokens.end(), impl_->around.after.begin(), impl_->around.after.end());
  return tokens;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text, std::string_view guard) const {
  std::vector<std::int32_t> tokens = encode(text, /*special=*/false, guard);
  const auto& [before, after] = impl_->around;
  if (!impl_->begins_with_bos(tokens)) tokens.insert(tokens.begin(), before.begin(), before.end());
  tokens.insert(tokens.end(), after.begin(), after.end());
  return tokens;
}

std::vector<std::int32_t> Tokenizer::encode_continuation(std::string_view text, std::string_view guard) const {
  std::vector<std::int32_t> tokens = encode(text, /*special=*/false, guard);
  if (impl_->begins_with_bos(tokens)) tokens.erase(tokens.begin());
  return tokens;
}

std::string Tokenizer::guarded(std::string_view words, std::string_view guard) const {
  std::string result;
  std::size_t done = 0;
  impl_->added.special().begins(words, [&](std::size_t begin) {
    const std::size_t inside = begin + utf8_at(words, begin).length;
    result += words.substr(done, inside - done);
    result += guard;
    done = inside;
  });
  return result += words.substr(done);
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& tokens, bool special, bool continued) const {
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const std::int32_t id : tokens) {
    if (const AddedToken* added = impl_->added.find(id)) {
      if (special || !added->special) texts.push_back(added->content);
    } else if (const std::string* text = impl_->bpe.text(id)) {
      texts.push_back(*text);
    }
  }
  return impl_->decoder.decode(std::move(texts), continued);
}

std::int32_t Tokenizer::vocab_size() const {
  return impl_->size();
}

std::int32_t Tokenizer::token(std::string_view text) const {
  const AddedToken* added = impl_->added.find(text);
  return added ? added->id : impl_->bpe.find(text);
}

bool Tokenizer::is_special(std::int32_t token) const {
  const AddedToken* added = impl_->added.find(token);
  return added && added->special;
}

}  // namespace hayloft::runtime
