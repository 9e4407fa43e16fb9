#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tokenizer/added.h"

namespace hayloft::runtime {

// Reads what the files beside DIR/tokenizer.json declare of added tokens and tokenizer.json does not: the tokens to add
// to `known`, those of tokenizer.json, or to change there, in the order in which transformers 5 does it, so that new
// tokens take the same ids. Read are added_tokens_decoder of tokenizer_config.json, or, where it has none,
// added_tokens.json and special_tokens_map.json; then the special tokens by name (bos_token, eos_token, ...,
// image_token) and those of extra_special_tokens (additional_special_tokens). None of the files has to be there. The
// ids that they give order the tokens; AddedTokens::add gives new ones. Throws Error naming file and field on what is
// damaged.
std::vector<AddedToken> declared_tokens(const std::filesystem::path& directory, const std::vector<AddedToken>& known);

// The special tokens that these files name, as chat templates know them: bos_token, eos_token, ... and their texts.
std::vector<std::pair<std::string, std::string>> special_tokens(const std::filesystem::path& directory);

}  // namespace hayloft::runtime
