#include "runtime/serve/messages/message_writer.h"

#include "offload/text/ordered_json.h"
#include "runtime/serve/answer_parts.h"
#include "runtime/serve/openai/answer.h"

namespace hayloft::runtime::serve::messages {
namespace {

using openai::Json;

Json usage_of(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens}}},
          {"hayloft", statement_members(usage.attention)}};
}

// Returns an empty object for arguments that were cut off.
Json input_of(const std::string& arguments) {
  try {
    return parse_ordered_json(arguments, LongIntegers::kept);
  } catch (const Error&) {
    return Json::object();
  }
}

}  // namespace

std::string error_body(int status, const std::string& message, const std::string& code) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 403 ? "permission_error"
                           : status == 404 ? "not_found_error"
                           : status == 413 ? "request_too_large"
                           : status == 429 ? "rate_limit_error"
                           : status == 503 ? "overloaded_error"
                           : status < 500  ? "invalid_request_error"
                                           : "api_error";
  Json error{{"type", type}, {"message", message}};
  if (code == kThreadCode) error["details"] = {{"error_code", code}, {"unsupported", {"thread"}}};
  return openai::dumped({{"type", "error"}, {"error", std::move(error)}, {"request_id", nullptr}});
}

MessageWriter::MessageWriter(const openai::Request& request)
    : request_(request), id_(new_id("msg_")), reader_(make_answer_reader(request.form)) {
  Usage before;
  before.prompt_tokens = static_cast<std::int64_t>(request.generations.front().tokens.size());
  usage_ = usage_of(before);
  usage_.erase("hayloft");
}

Json MessageWriter::message() const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", request_.model},
          {"content", content_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", usage_}};
}

std::string MessageWriter::begin() {
  return request_.stream ? named_event({{"type", "message_start"}, {"message", message()}}) : std::string();
}

std::string MessageWriter::open_block(Json block) {
  std::string events = close_block();
  content_.push_back(std::move(block));
  open_ = true;
  if (!request_.stream) return {};
  return events +
         named_event(
             {{"type", "content_block_start"}, {"index", content_.size() - 1}, {"content_block", content_.back()}});
}

std::string MessageWriter::close_block() {
  if (!std::exchange(open_, false)) return {};
  if (content_.back()["type"] == "tool_use") content_.back()["input"] = input_of(std::exchange(arguments_, {}));
  if (!request_.stream) return {};
  return named_event({{"type", "content_block_stop"}, {"index", content_.size() - 1}});
}

std::string MessageWriter::add(const std::vector<AnswerPart>& parts) {
  std::string events;
  const auto tell = [&](Json delta) {
    if (!request_.stream) return;
    events +=
        named_event({{"type", "content_block_delta"}, {"index", content_.size() - 1}, {"delta", std::move(delta)}});
  };
  for (const AnswerPart& part : parts) {
    const bool called = part.kind == AnswerPart::Kind::call;
    if (!called && part.text.empty()) continue;
    if (called) {
      events += open_block({{"type", "tool_use"},
                            {"id", "toolu_" + openai::call_id(id_, 0, content_.size())},
                            {"name", part.call.name},
                            {"input", Json::object()}});
    }
    if (called || part.kind == AnswerPart::Kind::arguments) {
      const std::string& more = called ? part.call.arguments : part.text;
      if (more.empty()) continue;  // they follow
      arguments_ += more;
      tell({{"type", "input_json_delta"}, {"partial_json", more}});
      if (called) events += close_block();
      continue;
    }
    const bool text = part.kind == AnswerPart::Kind::text;
    if (!open_ || content_.back()["type"] != (text ? "text" : "thinking")) {
      Json block{{"type", "text"}, {"text", ""}};
      if (!text) block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
      events += open_block(std::move(block));
    }
    const char* const field = text ? "text" : "thinking";
    content_.back()[field].get_ref<std::string&>() += part.text;
    tell({{"type", text ? "text_delta" : "thinking_delta"}, {field, part.text}});
  }
  return events;
}

std::string MessageWriter::generated(std::size_t, const GeneratedToken& token) {
  return add(parts_of(reader_.get(), token));
}

std::string MessageWriter::finished(std::size_t, FinishReason reason, const std::string& rest, const Usage& usage) {
  std::string events = add(last_parts(reader_.get(), rest));
  events += close_block();
  bool called = false;
  for (const Json& block : content_) called = called || block["type"] == "tool_use";
  const bool filled = request_.generations.front().fills_room;
  stop_reason_ = reason == FinishReason::length ? (filled ? "model_context_window_exceeded" : "max_tokens")
                 : !usage.stop.empty()          ? "stop_sequence"
                 : called                       ? "tool_use"
                                                : "end_turn";
  if (stop_reason_ == "stop_sequence") stop_sequence_ = usage.stop;
  usage_ = usage_of(usage);
  complete_ = true;
  if (!request_.stream) return {};
  return events + named_event({{"type", "message_delta"},
                               {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                               {"usage", usage_}});
}

std::string MessageWriter::failed(int status, const std::string& message) {
  return named_event(Json::parse(error_body(status, message)));
}

std::string MessageWriter::end(bool failed) {
  return failed ? std::string() : named_event({{"type", "message_stop"}});
}

std::string MessageWriter::whole() {
  Json whole = message();
  const std::vector<std::string>& notes = request_.notes.front();
  if (!notes.empty()) whole["hayloft"] = {{"notes", notes}};
  return openai::dumped(whole);
}

}  // namespace hayloft::runtime::serve::messages
