#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_form.h"

namespace {

using namespace hayloft::runtime;

// Bytes of value 1 to 9 stand for the special tokens that templates know, which come in runs of their own.
constexpr std::string_view kSpecial[] = {"<think>",        "</think>",    "<tool_call>", "</tool_call>", "[TOOL_CALLS]",
                                         "<|python_tag|>", "<|channel|>", "<|message|>", "<|end|>"};

constexpr std::string_view kParameterEnd = "</parameter>";

// Reads an answer in pieces of so many bytes, and traps unless it is the one call of f with this argument.
void expect_call(const std::string& answer, const std::string& argument, bool early, std::size_t step) {
  AnswerForm form;
  form.tags = true;
  form.early = early;
  form.tools = {{"f", nlohmann::ordered_json::parse(R"({"properties": {"a": {"type": "string"}}})")}};
  const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
  std::vector<AnswerPart> parts;
  const auto add = [&](const std::vector<AnswerPart>& more) { parts.insert(parts.end(), more.begin(), more.end()); };
  for (std::size_t i = 0; i < answer.size(); i += step) add(reader->push({answer.substr(i, step), false}));
  add(reader->finish());
  if (parts.empty() || parts.front().kind != AnswerPart::Kind::call || parts.front().call.name != "f") __builtin_trap();
  std::string arguments = parts.front().call.arguments;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].kind != AnswerPart::Kind::arguments) __builtin_trap();
    arguments += parts[i].text;
  }
  if (nlohmann::json::parse(arguments) != nlohmann::json{{"a", argument}}) __builtin_trap();
}

// Whatever an argument holds, tags of calls as well, the call is read with it.
void expect_argument(std::string_view bytes, bool early, std::size_t step) {
  using nlohmann::json;
  const std::string text = json(bytes).dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string argument = json::parse(text);
  expect_call(R"(<tool_call>{"name": "f", "arguments": {"a": )" + text + "}}</tool_call>", argument, early, step);
  if (argument.find(kParameterEnd) != std::string::npos) return;
  expect_call("<tool_call><function=f><parameter=a>\n" + argument + "\n</parameter></function></tool_call>", argument,
              early, step);
}

}  // namespace

// Whatever a model writes, it is text, reasoning and calls of tools that were offered, with objects for arguments; and
// an answer without any markup is its own text. The first byte chooses the form, the size whether calls are told early,
// and how many.
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
  form.one_call = size % 4 >= 2;
  const std::size_t step = 1 + (data[0] >> 7) * 6;
  expect_argument({reinterpret_cast<const char*>(data) + 1, size - 1}, form.early, step);
  const std::unique_ptr<AnswerReader> reader = make_answer_reader(form);
  if (!reader) return 0;
  std::string given, told;
  bool marked = false;
  int calls = 0;
  const auto take = [&](const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      told += part.text;
      if (part.kind != AnswerPart::Kind::call) continue;
      marked = true;
      if (++calls > 1 && form.one_call && !form.channels) __builtin_trap();
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
