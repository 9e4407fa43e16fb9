#include "runtime/serve/openai/piece.h"

#include <utility>

namespace hayloft::runtime::serve::openai {
namespace {

// Writes what both forms have, around the text.
Json framed(const Piece& piece, std::size_t index, const char* where, Json content) {
  Json choice{{"index", index}, {where, std::move(content)}, {"logprobs", piece.logprobs}, {"finish_reason", nullptr}};
  if (piece.reason) choice["finish_reason"] = *piece.reason == FinishReason::stop ? "stop" : "length";
  if (piece.called && piece.reason == FinishReason::stop) choice["finish_reason"] = "tool_calls";
  if (!piece.hayloft.is_null()) choice["hayloft"] = piece.hayloft;
  return choice;
}

}  // namespace

void add_arguments(Json& calls, std::size_t number, const std::string& text) {
  if (calls.empty() || calls.back()["index"] != number) {
    calls.push_back({{"index", number}, {"function", {{"arguments", ""}}}});
  }
  calls.back()["function"]["arguments"].get_ref<std::string&>() += text;
}

void append(Piece& sum, Piece next) {
  sum.role = sum.role || next.role;
  sum.text += next.text;
  sum.reasoning += next.reasoning;
  for (Json& call : next.calls) {
    if (call.contains("id")) {
      sum.calls.push_back(std::move(call));
    } else {
      add_arguments(sum.calls, call["index"], call["function"]["arguments"]);
    }
  }
  sum.called = sum.called || next.called;
  if (sum.logprobs.is_null()) {
    sum.logprobs = std::move(next.logprobs);
  } else {
    for (auto& [name, list] : next.logprobs.items()) {
      for (Json& each : list) sum.logprobs[name].push_back(std::move(each));
    }
  }
  if (next.reason) sum.reason = next.reason;
  if (!next.hayloft.is_null()) sum.hayloft = std::move(next.hayloft);
}

Json chunk_of(const Piece& piece, Style style, std::size_t index) {
  if (style == Style::completion) return framed(piece, index, "text", piece.text);
  Json delta = Json::object();
  if (piece.role) delta["role"] = "assistant";
  if (piece.role || !piece.text.empty()) delta["content"] = piece.text;
  if (!piece.reasoning.empty()) delta["reasoning_content"] = piece.reasoning;
  if (!piece.calls.empty()) delta["tool_calls"] = piece.calls;
  return framed(piece, index, "delta", std::move(delta));
}

Json choice_of(const Piece& sum, Style style, std::size_t index) {
  if (style == Style::completion) return framed(sum, index, "text", sum.text);
  Json message{{"role", "assistant"}, {"content", sum.text}, {"refusal", nullptr}};
  if (!sum.reasoning.empty()) message["reasoning_content"] = sum.reasoning;
  if (!sum.calls.empty()) {
    if (sum.text.empty()) message["content"] = nullptr;
    for (Json& call : message["tool_calls"] = sum.calls) call.erase("index");
  }
  return framed(sum, index, "message", std::move(message));
}

}  // namespace hayloft::runtime::serve::openai
