#include "runtime/checkpoint/gguf/tokenizer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/utf8.h"
#include "runtime/checkpoint/gguf/pretokenizers.h"
#include "runtime/tokenizer/end_of_turn.h"

namespace hayloft::runtime::gguf {
namespace {

using nlohmann::json;

constexpr std::int64_t most_vocabulary = std::int64_t{1} << 22;
constexpr const char* underscore = "\u2581";  // which stands for a space in SentencePiece's vocabularies

constexpr const char* types_key = "tokenizer.ggml.token_type";

enum class TokenType : std::int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// tokenizer.ggml.*, its lists checked against each other.
struct Vocabulary {
  explicit Vocabulary(const Metadata& from) : metadata(from), texts(from.texts("tokenizer.ggml.tokens")) {
    if (texts.empty() || static_cast<std::int64_t>(texts.size()) > most_vocabulary) {
      metadata.refuse("tokenizer.ggml.tokens", fmt::format("a list of 1 to {} texts", most_vocabulary));
    }
    if (metadata.contains(types_key)) {
      types = metadata.integers(types_key);
      if (types.size() < texts.size()) {
        metadata.refuse(types_key, fmt::format("one number for each of the {} tokens", texts.size()));
      }
    }
    types.resize(texts.size(), static_cast<std::int64_t>(TokenType::normal));
    for (std::size_t id = 0; id < texts.size(); ++id) {
      if (valid_utf8_prefix(texts[id]) != texts[id].size()) {
        fail("{}: tokenizer.ggml.tokens[{}] is not valid UTF-8", metadata.file(), id);
      }
    }
  }

  bool is(std::size_t id, TokenType type) const { return types[id] == static_cast<std::int64_t>(type); }

  // The id that a key names, none when it is absent; some files have -1 or 2^32 - 1 for that. SentencePiece's
  // vocabularies have usual ids where no key says otherwise.
  std::optional<std::int32_t> special(std::string_view name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (!metadata.contains(key)) return by_scores() ? usual(name) : std::nullopt;
    const std::int64_t id = metadata.integer(key, -1, 0xFFFFFFFF);
    if (id == -1 || id == 0xFFFFFFFF) return std::nullopt;
    if (id >= static_cast<std::int64_t>(texts.size())) {
      metadata.refuse(key, fmt::format("less than the {} tokens of the vocabulary", texts.size()));
    }
    return static_cast<std::int32_t>(id);
  }

  // Returns whether it is one of SentencePiece with scores.
  bool by_scores() const { return metadata.text_or("tokenizer.ggml.model", "") == "llama"; }

  const Metadata& metadata;
  std::vector<std::string_view> texts;
  std::vector<std::int64_t> types;

 private:
  std::optional<std::int32_t> usual(std::string_view name) const {
    constexpr std::array<std::string_view, 3> names = {"unknown", "bos", "eos"};
    const auto id = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
    if (id >= std::min(names.size(), texts.size())) return std::nullopt;
    return static_cast<std::int32_t>(id);
  }
};

json texts_by_id(const Vocabulary& vocabulary) {
  json list = json::array();
  for (const std::string_view text : vocabulary.texts) list.push_back(text);
  return list;
}

// Phi 3's tokens take in the white space behind them, which no key says: known by the architecture's SentencePiece
// vocabulary, or as llama.cpp does by the name.
bool strips_behind_tokens(const Vocabulary& vocabulary) {
  const Metadata& metadata = vocabulary.metadata;
  if (!vocabulary.by_scores()) return false;
  if (metadata.text_or("general.architecture", "") == "phi3") return true;
  std::string name(metadata.text_or("general.name", ""));
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

// Control tokens and those that the user defined are tokens wherever their text stands.
json added_tokens(const Vocabulary& vocabulary) {
  json list = json::array();
  const bool strips = strips_behind_tokens(vocabulary);
  constexpr std::array<std::string_view, 3> alone = {"<unk>", "<s>", "<|endoftext|>"};
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const bool special = vocabulary.is(id, TokenType::control) || vocabulary.is(id, TokenType::unknown);
    if ((!special && !vocabulary.is(id, TokenType::user_defined)) || vocabulary.texts[id].empty()) continue;
    list.push_back({{"id", id},
                    {"content", vocabulary.texts[id]},
                    {"special", special},
                    {"rstrip", strips && std::ranges::find(alone, vocabulary.texts[id]) == alone.end()},
                    {"normalized", false}});
  }
  return list;
}

// The tokens around a text: BOS and EOS, where the flags ask for them.
json post_processor(const Vocabulary& vocabulary, bool bos_by_default) {
  json single = json::array();
  json tokens = json::object();
  const auto add = [&](const char* name, bool by_default) {
    const std::string key = fmt::format("tokenizer.ggml.add_{}_token", name);
    if (!vocabulary.metadata.boolean_or(key, by_default)) return;
    const auto id = vocabulary.special(name);
    if (!id && !vocabulary.metadata.contains(key)) return;
    if (!id) fail("{}: {} is true, and there is no tokenizer.ggml.{}_token_id", vocabulary.metadata.file(), key, name);
    tokens[name] = {{"id", name}, {"ids", {*id}}};
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
  };
  add("bos", bos_by_default);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add("eos", false);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
}

json merges(const Metadata& metadata) {
  json list = json::array();
  for (const std::string_view merge : metadata.texts("tokenizer.ggml.merges")) {
    // The space that parts the two may be followed by more, which then belong to the second.
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || valid_utf8_prefix(merge) != merge.size()) {
      fail("{}: tokenizer.ggml.merges has '{}', which is not two tokens with a space between", metadata.file(),
           printable(merge));
    }
    list.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return list;
}

const PreTokenizerKind& pre_tokenizer_kind(const Metadata& metadata, std::string_view name) {
  const PreTokenizerKind* kind = find_pre_tokenizer(name);
  if (!kind) {
    fail("{}: tokenizer.ggml.pre is '{}', a way of cutting text into words that is not supported", metadata.file(),
         printable(name));
  }
  return *kind;
}

json splits(const PreTokenizerKind& kind) {
  json steps = json::array();
  for (const std::string_view pattern : kind.patterns) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  return steps;
}

json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}
json sequence(const char* list_key, json steps) {
  return {{"type", "Sequence"}, {list_key, std::move(steps)}};
}

constexpr const char* pre_key = "tokenizer.ggml.pre";

const PreTokenizerKind& pre_tokenizer_of(const Vocabulary& vocabulary) {
  std::string_view name = vocabulary.metadata.text_or(pre_key, "");
  const KnownVocabulary* known = name.empty() ? recognise_vocabulary(vocabulary.texts) : nullptr;
  if (known) name = known->pre;
  return pre_tokenizer_kind(vocabulary.metadata, name);
}

json byte_level_document(const Vocabulary& vocabulary) {
  const Metadata& metadata = vocabulary.metadata;
  const PreTokenizerKind& kind = pre_tokenizer_of(vocabulary);
  json steps = splits(kind);
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"normalizer", kind.nfc ? json{{"type", "NFC"}} : json()},
          {"pre_tokenizer", sequence("pretokenizers", std::move(steps))},
          {"model",
           {{"type", "BPE"},
            {"vocab", texts_by_id(vocabulary)},
            {"merges", merges(metadata)},
            {"ignore_merges", kind.ignore_merges}}},
          {"post_processor", post_processor(vocabulary, kind.add_bos)},
          {"decoder", {{"type", "ByteLevel"}}}};
}

// SentencePiece writes spaces as underscores; characters that the vocabulary lacks are spelled in byte tokens.
json sentencepiece_document(const Vocabulary& vocabulary) {
  const bool by_scores = vocabulary.by_scores();
  const bool space_first = by_scores && vocabulary.metadata.boolean_or("tokenizer.ggml.add_space_prefix", true);
  json normalizer = json::array();
  json decoder = json::array({replace(underscore, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (space_first) {
    normalizer.push_back({{"type", "Prepend"}, {"prepend", underscore}});
    decoder.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizer.push_back(replace(" ", underscore));

  json model = {{"type", "BPE"}, {"vocab", texts_by_id(vocabulary)}, {"byte_fallback", true}, {"fuse_unk", true}};
  if (const auto unknown = vocabulary.special("unknown")) {
    model["unk_token"] = vocabulary.texts[static_cast<std::size_t>(*unknown)];
  }
  json pre_tokenizer;
  if (by_scores) {
    const std::vector<double> scores = vocabulary.metadata.numbers("tokenizer.ggml.scores");
    if (scores.size() != vocabulary.texts.size()) {
      vocabulary.metadata.refuse("tokenizer.ggml.scores",
                                 fmt::format("one number for each of the {} tokens", vocabulary.texts.size()));
    }
    model["scores"] = scores;
  } else {
    model["merges"] = merges(vocabulary.metadata);
    pre_tokenizer = sequence("pretokenizers", splits(pre_tokenizer_kind(vocabulary.metadata, "gemma4")));
  }
  return {{"normalizer", sequence("normalizers", std::move(normalizer))},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"model", std::move(model)},
          {"post_processor", post_processor(vocabulary, true)},
          {"decoder", sequence("decoders", std::move(decoder))}};
}

}  // namespace

nlohmann::json tokenizer_document(const Metadata& metadata) {
  const std::string_view model = metadata.text("tokenizer.ggml.model");
  if (model != "gpt2" && model != "llama" && model != "gemma4") {
    metadata.refuse("tokenizer.ggml.model", "gpt2, llama or gemma4 for hayloft to run it");
  }
  for (const char* key : {"tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents"}) {
    if (metadata.boolean_or(key, false)) metadata.refuse(key, "false: a vocabulary that changes text is not supported");
  }
  const Vocabulary vocabulary(metadata);
  json document = model == "gpt2" ? byte_level_document(vocabulary) : sentencepiece_document(vocabulary);
  document["added_tokens"] = added_tokens(vocabulary);
  return document;
}

namespace {

// Says how text is cut into words where no key does.
std::vector<std::string> words_notes(const Metadata& metadata) {
  if (metadata.text_or("tokenizer.ggml.model", "") != "gpt2" || !metadata.text_or(pre_key, "").empty()) return {};
  const std::vector<std::string_view> texts = metadata.texts("tokenizer.ggml.tokens");
  if (const KnownVocabulary* known = recognise_vocabulary(texts)) {
    return {fmt::format("{}: {} is missing; the vocabulary is that of {}, so text is cut as by '{}'", metadata.file(),
                        pre_key, known->name, known->pre)};
  }
  return {
      fmt::format("{}: {} is missing and the vocabulary is not a known one: text is cut by 'default', which may "
                  "not be how the model has learned it; convert the model anew",
                  metadata.file(), pre_key)};
}

// Says where a merge is listed again, which moves it to its later place, and not in llama.cpp.
std::vector<std::string> merges_notes(const Metadata& metadata) {
  constexpr const char* key = "tokenizer.ggml.merges";
  if (metadata.text_or("tokenizer.ggml.model", "") == "llama" || !metadata.contains(key)) return {};
  const std::vector<std::string_view> merges = metadata.texts(key);
  std::unordered_set<std::string_view> seen;
  seen.reserve(merges.size());
  for (const std::string_view merge : merges) {
    if (seen.insert(merge).second) continue;
    return {
        fmt::format("{}: {} has '{}' twice; the later place counts, as in Hugging Face's tokenizers, where llama.cpp "
                    "goes by the earlier",
                    metadata.file(), key, printable(merge))};
  }
  return {};
}

}  // namespace

std::vector<std::string> tokenizer_notes(const Metadata& metadata) {
  std::vector<std::string> notes = words_notes(metadata);
  for (std::string& note : merges_notes(metadata)) notes.push_back(std::move(note));
  if (metadata.contains("tokenizer.chat_template") && !metadata.contains(types_key)) {
    notes.push_back(
        fmt::format("{}: {} is missing: the special tokens of its chat template are read as plain text; convert the "
                    "model anew",
                    metadata.file(), types_key));
  }
  return notes;
}

std::vector<std::pair<std::string, std::string>> special_tokens(const Metadata& metadata) {
  const Vocabulary vocabulary(metadata);
  std::vector<std::pair<std::string, std::string>> texts;
  constexpr std::pair<const char*, const char*> names[] = {
      {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};
  for (const auto& [own, theirs] : names) {
    if (const auto id = vocabulary.special(own)) {
      texts.emplace_back(theirs, vocabulary.texts[static_cast<std::size_t>(*id)]);
    }
  }
  return texts;
}

std::vector<std::int32_t> end_tokens(const Metadata& metadata) {
  const Vocabulary vocabulary(metadata);
  std::map<std::string_view, std::int32_t> control;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    // Files of models whose makers added them as plain tokens type ends of turns as the user's; HTML's </s> is one,
    // too.
    const bool users = vocabulary.is(id, TokenType::user_defined) && vocabulary.texts[id] != "</s>";
    if (users || vocabulary.is(id, TokenType::control)) control[vocabulary.texts[id]] = static_cast<std::int32_t>(id);
  }
  const auto find = [&](std::string_view name) {
    const auto found = control.find(name);
    return found == control.end() ? -1 : found->second;
  };
  const std::vector<std::int32_t> named = end_of_turn_tokens(find);
  std::set<std::int32_t> ids(named.begin(), named.end());
  const std::int32_t of_message = find("<|end|>");  // which files of gpt-oss may call their eot
  for (const char* name : {"eos", "eot", "eom"}) {
    const auto id = vocabulary.special(name);
    if (id && (*id != of_message || ids.contains(*id) || name == std::string_view("eos"))) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

}  // namespace hayloft::runtime::gguf
