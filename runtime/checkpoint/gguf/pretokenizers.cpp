#include "runtime/checkpoint/gguf/pretokenizers.h"

#include <algorithm>

namespace hayloft::runtime::gguf {
namespace {

// GPT-2's words: contractions; letters, numbers and signs, each with the space before it; white space.
constexpr std::string_view gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view digit = R"(\p{N})";
constexpr std::string_view three_digits = R"(\p{N}{1,3})";

// The later families' words: contractions in either case, letters with one sign before them, numbers of three digits or
// one, signs with the line ends behind them, line ends with the space before them.
constexpr std::string_view llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view bailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view seed_coder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words that begin with capitals, then words in small letters (o200k and Mistral's Tekken).
constexpr std::string_view o200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view deepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view han_and_kana = R"([\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+)";
constexpr std::string_view han_and_hangul = R"([\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+)";
constexpr std::string_view lines = R"([^\n]+|\n+)";

struct Named {
  std::vector<std::string_view> names;
  PreTokenizerKind kind;
};

const std::vector<Named>& kinds() {
  static const std::vector<Named> all = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
        "mellum", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "modern-bert"},
       {{gpt2}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {{digit, gpt2}}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {{llama3}, true, true}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {{llama3}}},
      {{"glm4", "glm5"}, {{llama3}, true}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "megrez"}, {{qwen2}, false, false, true}},
      {{"stablelm2", "hunyuan", "solar-open", "grok-2"}, {{qwen2}}},
      {{"qwen35"}, {{qwen35}}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {{bailing}}},
      {{"seed-coder"}, {{seed_coder}}},
      {{"gpt-4o", "llama4", "kanana2"}, {{o200k}}},
      {{"tekken"}, {{tekken}, true, true}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {{three_digits, han_and_kana, deepseek3}}},
      {{"deepseek-coder"}, {{R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", han_and_hangul, digit}}},
      {{"falcon"}, {{R"([\p{P}\$\+<=>\^~\|`]+)", gpt2, "[0-9][0-9][0-9]"}}},
      {{"", "default"}, {{R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
      {{"gemma4"}, {{lines}, false, true}},
  };
  return all;
}

// The last of the merged tokens, which training has found in an order that is each vocabulary's own. Texts are as
// byte-level BPE spells them.
struct Signature {
  KnownVocabulary vocabulary;
  std::size_t id;
  std::string_view before, text;  // of id - 1 and id
};
constexpr Signature signatures[] = {
    {{"Llama 3", "llama-bpe"}, 127999, "\u00e3\u0125\u00bc\u00e3\u0125\u00bc", "\u00e9\u0136\u00a6"},
    {{"Qwen 2", "qwen2"}, 151642, "\u00e2\u00ba\u0141", "\u00e2\u00bd\u0139"},
    {{"GPT-2", "gpt-2"}, 50255, "\u0120informants", "\u0120gazed"},
    {{"SmolLM", "smollm"}, 49151, "\u0120Mama", "ectable"},
    {{"StarCoder 2", "starcoder"}, 49151, "jem", "sdb"},
    {{"Refact", "refact"}, 49151, "\u0120SIP", "getOptions"},
    {{"DeepSeek Coder", "deepseek-coder"}, 31999, "\u0120certainty", "\u0120Shan"},
    {{"Falcon", "falcon"}, 65023, "lerweile", "\u0120victoria"},
};

}  // namespace

const KnownVocabulary* recognise_vocabulary(std::span<const std::string_view> texts) {
  for (const Signature& each : signatures) {
    if (each.id < texts.size() && texts[each.id] == each.text && texts[each.id - 1] == each.before) {
      return &each.vocabulary;
    }
  }
  return nullptr;
}

const PreTokenizerKind* find_pre_tokenizer(std::string_view name) {
  for (const Named& named : kinds()) {
    if (std::find(named.names.begin(), named.names.end(), name) != named.names.end()) return &named.kind;
  }
  return nullptr;
}

}  // namespace hayloft::runtime::gguf
