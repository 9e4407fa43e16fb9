#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft::runtime {

struct TokenizerDocument;

// The tokenizer of a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen: the split patterns are read
// from the file and run by PCRE2) or SentencePiece-style BPE with byte fallback (Llama 2, Mistral). Added tokens and
// NFC are honoured. Immutable and thread-safe after construction.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json, and what tokenizer_config.json, added_tokens.json and special_tokens_map.json beside it
  // declare of added tokens (declared.h). Throws Error naming the file and what is unsupported, missing (merges!) or
  // damaged.
  explicit Tokenizer(const std::filesystem::path& directory);
  explicit Tokenizer(const TokenizerDocument& document);  // of one already parsed
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The bytes of a tokenizer.json already in memory, and nothing beside it; `name` is used in messages.
  static Tokenizer from_json(std::string_view json, const std::string& name);

  // text is UTF-8; invalid sequences are read as U+FFFD. special: add what the post-processor adds around a single text
  // (BOS and the like). guard: what guarded() has put into parts of the text, empty for nothing. Text of any length, in
  // time linear in it.
  std::vector<std::int32_t> encode(std::string_view text, bool special = true, std::string_view guard = {}) const;

  // A whole prompt as the model reads it: encode(text), but where the text itself begins with the first token that the
  // post-processor puts before a text (BOS, as chat templates write it), nothing is put before it.
  std::vector<std::int32_t> encode_prompt(std::string_view text, std::string_view guard = {}) const;

  // Text that goes on behind other tokens: encode(text, false) without the BOS that a chat template may begin with,
  // where the post-processor puts one before every text anyway.
  std::vector<std::int32_t> encode_continuation(std::string_view text, std::string_view guard = {}) const;

  // Returns `words` with `guard` inside what is written there as special tokens are: encode() with that guard reads it
  // as words, as tokenizers' encode_special_tokens does, and leaves out the guard, which must not stand in `words`. A
  // special token of one character has no inside and stays one.
  std::string guarded(std::string_view words, std::string_view guard) const;

  // The bytes of the tokens, joined; special tokens are left out unless asked for, ids that are no token always. Not
  // always whole UTF-8 (see Utf8Stream). continued: the tokens follow others, so the space that a SentencePiece-style
  // tokenizer takes from the beginning of a text stays. Byte-level and SentencePiece-style tokenizers so decode piece
  // by piece to the same bytes as all at once.
  std::string decode(const std::vector<std::int32_t>& tokens, bool special = false, bool continued = false) const;

  std::int32_t vocab_size() const;                  // the largest id plus one
  std::int32_t token(std::string_view text) const;  // id of a vocabulary entry or added token, -1 if there is none
  bool is_special(std::int32_t token) const;        // left out of decoded text unless asked for

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hayloft::runtime
