#pragma once

#include <optional>
#include <string>

#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::openai {

// A part of an answer that is new. A stream sends pieces one by one; an answer in one piece is their sum, and made no
// other way.
struct Piece {
  bool role = false;  // of a chat: the assistant begins
  std::string text;
  std::string reasoning;
  Json calls = Json::array();          // of tools, as the API has them
  bool called = false;                 // at the end: the answer has called tools
  Json logprobs;                       // null where none are told
  std::optional<FinishReason> reason;  // at the end
  Json hayloft;                        // beyond the API, at the end; null: nothing to tell
};

// Adds more of the arguments of call `number`, which has begun in this piece or before.
void add_arguments(Json& calls, std::size_t number, const std::string& text);

// Appends what comes next.
void append(Piece& sum, Piece next);

// As the API's choice number `index`: of a stream, or of an answer in one piece.
Json chunk_of(const Piece& piece, Style style, std::size_t index);
Json choice_of(const Piece& sum, Style style, std::size_t index);

}  // namespace hayloft::runtime::serve::openai
