#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/chat/calls/answer_form.h"

namespace {

using namespace hayloft::runtime;

// Bytes of value 1 to 9 stand for the special tokens that templates know, which come in runs of their own.
constexpr std::string_view kSpecial[] = {"<think>",        "</think>",    "<tool_call>", "</tool_call>", "[TOOL_CALLS]",
                                         "<|python_tag|>", "<|channel|>", "<|message|>", "<|end|>"};

}  // namespace

// Whatever a model writes, it is text, reasoning and calls of tools that were offered, with objects for arguments; and
// an answer without any markup is its own text. The first byte chooses the form, the size whether calls are told early.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  AnswerForm form;
  form.tags = data[0] & 1;
  form.mistral = data[0] & 2;
  form.llama = data[0] & 4;
  form.channels = data[0] & 8;
  form.thinks = data[0] & 16;
  form.in_thought = form.thinks && (data[0] & 32);
  if (data[0] & 64) form.tools = {{"f", nlohmann::ordered_json::object()}};
  form.early = size % 2 == 1;
  const std::size_t step = 1 + (data[0] >> 7) * 6;
  const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
  if (!reader) return 0;
  std::string given, told;
  bool marked = false;
  const auto take = [&](const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      told += part.text;
      if (part.kind != AnswerPart::Kind::call) continue;
      marked = true;
      if (part.call.name != "f") __builtin_trap();
      if (form.early && part.call.arguments.empty()) continue;
      if (!nlohmann::json::parse(part.call.arguments).is_object()) __builtin_trap();
    }
  };
  for (std::size_t i = 1; i < size;) {
    if (data[i] >= 1 && data[i] <= 9) {
      marked = true;
      take(reader->push({std::string(kSpecial[data[i++] - 1]), true}));
      continue;
    }
    std::string text;
    for (; i < size && text.size() < step && !(data[i] >= 1 && data[i] <= 9); ++i) text += static_cast<char>(data[i]);
    given += text;
    take(reader->push({text, false}));
  }
  take(reader->finish());
  if (!marked && !form.thinks && told != given) __builtin_trap();
  return 0;
}
