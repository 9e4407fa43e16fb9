#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/bpe/cache.h"
#include "runtime/tokenizer/bpe/merges.h"
#include "runtime/tokenizer/bpe/text_ids.h"

namespace hayloft::runtime {

class Field;

// The "model" of a tokenizer.json of type BPE: vocabulary and merges. Besides, as GGUF files have it: a vocabulary that
// is the list of its texts by id, and "scores", one a token, instead of merges. Immutable and thread-safe.
class Bpe {
 public:
  // byte_level: words are encoded as bytes, for which the vocabulary has the letters of GPT-2's byte alphabet; without
  // it words are UTF-8. Throws Error naming the field that is missing, damaged or not supported.
  Bpe(const Field& model, bool byte_level);
  Bpe(const Bpe&) = delete;  // its index views its own texts
  Bpe& operator=(const Bpe&) = delete;

  TokenId find(std::string_view text) const;                            // -1 if there is none
  const std::string* text(TokenId id) const;                            // nullptr if there is none
  TokenId size() const { return static_cast<TokenId>(texts_.size()); }  // the largest id plus one

  // An entry longer than a character while there are no merges to form it: the mark of a file that lost its merges.
  // nullptr for a sound model. `known(text)` tells entries that need no merges (added tokens).
  template <class Known>
  const std::string* unreachable(Known&& known) const {
    if (merge_count_ > 0) return nullptr;
    for (const std::string& text : texts_) {
      if (!text.empty() && longer_than_a_symbol(text) && !known(text)) return &text;
    }
    return nullptr;
  }

  // Encodes the words of one text. Holds what a single thread needs, caches included; the Bpe outlives it.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe) : bpe_(bpe), merger_(bpe.merges_) {}
    void encode(std::string_view word, std::vector<TokenId>& out);

   private:
    void encode_uncached(std::string_view word, std::vector<TokenId>& out);
    void append_merged(const TokenId* begin, const TokenId* end, std::vector<TokenId>& out);

    const Bpe& bpe_;
    Merger merger_;
    WordCache words_;
    WordCache segments_;  // keys are the symbols' ids
    std::vector<TokenId> symbols_, merged_;
  };

 private:
  void read_vocabulary(const Field& vocab);
  void read_texts(const Field& vocab);
  void index(TokenId id);  // enters a text into what finds it
  void read_merges(const Field& merges);
  void read_scores(const Field& scores);
  void add_merge(std::string_view left, std::string_view right, std::size_t index, const Field& merges);
  void note_joint(std::string_view left, TokenId left_id, std::string_view right, TokenId right_id);

  bool longer_than_a_symbol(std::string_view text) const;
  TokenId find_or_fail(std::string_view text, std::size_t merge, const Field& merges) const;
  TokenId symbol(char32_t code, std::string_view character, bool first, bool last) const;
  void append_symbols(std::string_view word, std::vector<TokenId>& symbols) const;
  bool append_byte_tokens(std::string_view character, std::vector<TokenId>& symbols) const;

  bool byte_level_;
  bool ignore_merges_, fuse_unknown_, byte_fallback_;
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
  TokenId unknown_ = -1;

  std::vector<std::string> texts_;  // by id; an id that is not in use has an empty text
  TextIds ids_{texts_};
  std::vector<TokenId> characters_;   // the symbol of each character of the basic plane, -1 if there is none
  std::array<TokenId, 256> letters_;  // the symbol of each byte (byte level), -1 if there is none
  std::array<TokenId, 256> bytes_;    // <0x00> to <0xFF>, -1 if there is none

  std::size_t merge_count_ = 0;
  MergeTable merges_;
  // The pairs of symbols that stand side by side within any token that merges form. Between two symbols that are no
  // such pair nothing can ever join, so that a long text falls into segments that are encoded one by one.
  MergeTable joints_;
  bool segmentable_;
};

}  // namespace hayloft::runtime
