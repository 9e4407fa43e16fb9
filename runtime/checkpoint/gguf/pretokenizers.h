#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace hayloft::runtime::gguf {

// The meaning of a `tokenizer.ggml.pre`: how byte-level BPE cuts text into words. The patterns run one after the other,
// each on what the one before has cut, matches and what lies between alike; they are those of the models' own
// tokenizer.json files.
struct PreTokenizerKind {
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;  // a word that is in the vocabulary is one token, however its merges end
  bool add_bos = false;        // where tokenizer.ggml.add_bos_token does not say
  bool nfc = false;            // text is normalised first
};

// Null: a kind that is not known. An empty name is that of files from before there were kinds.
const PreTokenizerKind* find_pre_tokenizer(std::string_view name);

// A vocabulary that many models have, and the kind that goes with it.
struct KnownVocabulary {
  std::string_view name;
  std::string_view pre;
};
// By tokens that no other vocabulary has in the same places; null where it is none of those known.
const KnownVocabulary* recognise_vocabulary(std::span<const std::string_view> texts);

}  // namespace hayloft::runtime::gguf
