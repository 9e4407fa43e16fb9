#include "runtime/chat/calls/answer_form.h"

#include "runtime/chat/calls/channel_reader.h"
#include "runtime/chat/calls/tag_reader.h"
#include "runtime/chat/chat_template.h"

namespace hayloft::runtime {

AnswerForm answer_form(const ChatTemplate& chat_template, std::vector<OfferedTool> tools, std::string_view prompt) {
  AnswerForm form;
  form.channels = chat_template.mentions("<|channel|>") && chat_template.mentions("<|message|>");
  form.tags = chat_template.mentions("<tool_call>");
  form.mistral = chat_template.mentions("[TOOL_CALLS]");
  // Llama 3 writes a call as an object, with nothing around it.
  form.llama = !form.tags && !form.mistral && !form.channels &&
               (chat_template.mentions("<|python_tag|>") || chat_template.mentions("ipython"));
  form.thinks = !form.channels && chat_template.mentions("</think>");
  std::string_view end = prompt;
  while (end.ends_with('\n') || end.ends_with(' ')) end.remove_suffix(1);
  form.in_thought = form.thinks && end.ends_with("<think>");
  form.tools = std::move(tools);
  return form;
}

std::unique_ptr<AnswerReader> make_answer_reader(const AnswerForm& form) {
  if (form.plain()) return nullptr;
  if (form.channels) return std::make_unique<ChannelReader>(form);
  return std::make_unique<TagReader>(form);
}

void add_part(std::vector<AnswerPart>& parts, AnswerPart::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (parts.empty() || parts.back().kind != kind || kind == AnswerPart::Kind::call) parts.push_back({kind, {}, {}});
  parts.back().text += text;
}

void add_calls(std::vector<AnswerPart>& parts, std::vector<ToolCall> calls) {
  for (ToolCall& call : calls) parts.push_back({AnswerPart::Kind::call, {}, std::move(call)});
}

}  // namespace hayloft::runtime
