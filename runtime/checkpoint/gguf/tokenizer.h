#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/gguf/metadata.h"

namespace hayloft::runtime::gguf {

// The tokenizer that tokenizer.ggml.* describes, as the tokenizer.json that says the same. Kinds: byte-level BPE
// (`gpt2`, with a pre-tokenizer of find_pre_tokenizer), SentencePiece's BPE by scores (`llama`) and Gemma 4's
// (`gemma4`). Two things go beyond tokenizer.json: model.vocab is the list of texts by id, and SentencePiece's model
// has `scores`, a number for each id, in place of merges. Throws Error naming the file and the key.
//
// If tokenizer.ggml.pre is missing, the pre-tokenizer is that of the vocabulary, as far as it is a known one, else
// llama.cpp's `default`; tokenizer_notes() says so.
nlohmann::json tokenizer_document(const Metadata& metadata);

// Says what the user should know of how text is cut, a line each.
std::vector<std::string> tokenizer_notes(const Metadata& metadata);

// Tokens that end an answer: the end of text, of a turn and of a message, as far as the file names them or has control
// tokens, or tokens of the user's, with the names that go by in the field. Ascending, each once.
std::vector<std::int32_t> end_tokens(const Metadata& metadata);

// The texts of the special tokens under the names that chat templates have for them: bos_token, eos_token, unk_token,
// pad_token, as far as the file says which they are.
std::vector<std::pair<std::string, std::string>> special_tokens(const Metadata& metadata);

}  // namespace hayloft::runtime::gguf
