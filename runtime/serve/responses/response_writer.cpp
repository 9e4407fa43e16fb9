#include "runtime/serve/responses/response_writer.h"

#include <utility>

#include "runtime/serve/answer_parts.h"
#include "runtime/serve/openai/answer.h"
#include "runtime/serve/responses/items.h"
#include "runtime/serve/responses/response_store.h"

namespace hayloft::runtime::serve::responses {

using openai::Json;

ResponseWriter::ResponseWriter(const openai::Request& request, std::int64_t created)
    : request_(request), id_(new_id("resp_")), created_(created), reader_(make_answer_reader(request.form)) {}

// The request is told with it, as the API has it.
Json ResponseWriter::response() const {
  const Json& asked = request_.turn->asked;
  const auto told = [&](const char* name, Json otherwise) {
    return asked.contains(name) && !asked[name].is_null() ? asked[name] : std::move(otherwise);
  };
  const bool incomplete = status_ == "incomplete";
  const SamplerOptions& sampling = request_.generations.front().sampling;
  Json response{{"id", id_},
                {"object", "response"},
                {"created_at", created_},
                {"status", status_},
                {"background", false},
                {"error", error_},
                {"incomplete_details", incomplete ? Json{{"reason", "max_output_tokens"}} : Json()},
                {"instructions", told("instructions", nullptr)},
                {"max_output_tokens", told("max_output_tokens", nullptr)},
                {"model", request_.model},
                {"output", output_},
                {"parallel_tool_calls", told("parallel_tool_calls", true)},
                {"previous_response_id", told("previous_response_id", nullptr)},
                {"reasoning", told("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                {"store", told("store", true)},
                {"temperature", sampling.temperature},
                {"text", told("text", {{"format", {{"type", "text"}}}})},
                {"tool_choice", told("tool_choice", "auto")},
                {"tools", told("tools", Json::array())},
                {"top_p", sampling.top_p},
                {"truncation", "disabled"},
                {"usage", usage_},
                {"metadata", told("metadata", Json::object())}};
  for (Json& tool : response["tools"]) {  // these the type of a tool must have
    for (const char* field : {"parameters", "strict"}) {
      if (!tool.contains(field)) tool[field] = nullptr;
    }
  }
  const std::vector<std::string>& notes = request_.notes.front();
  if (!notes.empty()) response["hayloft"] = {{"notes", notes}};
  return response;
}

std::string ResponseWriter::event(Json data) {
  data["sequence_number"] = number_++;
  return request_.stream ? named_event(data) : std::string();
}

std::string ResponseWriter::begin() {
  std::string events = event({{"type", "response.created"}, {"response", response()}});
  return events + waiting();
}

std::string ResponseWriter::open_item(bool message) {
  std::string events = close_item("completed");
  const std::string id = new_id(message ? "msg_" : "rs_");
  Json item{
      {"type", "message"}, {"id", id}, {"status", "in_progress"}, {"role", "assistant"}, {"content", Json::array()}};
  if (!message) {
    item = {{"type", "reasoning"},
            {"id", id},
            {"status", "in_progress"},
            {"summary", Json::array()},
            {"content", Json::array()}};
  }
  output_.push_back(std::move(item));
  events +=
      event({{"type", "response.output_item.added"}, {"output_index", output_.size() - 1}, {"item", output_.back()}});
  Json part{{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  if (!message) part = {{"type", "reasoning_text"}, {"text", ""}};
  events += event({{"type", "response.content_part.added"},
                   {"item_id", id},
                   {"output_index", output_.size() - 1},
                   {"content_index", 0},
                   {"part", part}});
  output_.back()["content"].push_back(std::move(part));
  open_ = true;
  return events;
}

std::string ResponseWriter::close_item(const char* status) {
  if (!std::exchange(open_, false)) return {};
  Json& item = output_.back();
  item["status"] = status;
  if (item["type"] == "function_call") return close_call(item);
  const Json& part = item["content"][0];
  const Json where{{"item_id", item["id"]}, {"output_index", output_.size() - 1}, {"content_index", 0}};
  const bool message = item["type"] == "message";
  Json text = where;
  text["type"] = message ? "response.output_text.done" : "response.reasoning_text.done";
  text["text"] = part["text"];
  if (message) text["logprobs"] = Json::array();
  std::string events = event(std::move(text));
  Json done = where;
  done["type"] = "response.content_part.done";
  done["part"] = part;
  events += event(std::move(done));
  return events + event({{"type", "response.output_item.done"}, {"output_index", output_.size() - 1}, {"item", item}});
}

std::string ResponseWriter::add_text(const AnswerPart& part) {
  const bool message = part.kind == AnswerPart::Kind::text;
  std::string events;
  if (!open_ || output_.back()["type"] != (message ? "message" : "reasoning")) events = open_item(message);
  output_.back()["content"][0]["text"].get_ref<std::string&>() += part.text;
  Json delta{{"type", message ? "response.output_text.delta" : "response.reasoning_text.delta"},
             {"item_id", output_.back()["id"]},
             {"output_index", output_.size() - 1},
             {"content_index", 0},
             {"delta", part.text}};
  if (message) delta["logprobs"] = Json::array();
  return events + event(std::move(delta));
}

std::string ResponseWriter::add_call(const ToolCall& call) {
  std::string events = close_item("completed");
  Json item{
      {"type", "function_call"}, {"id", new_id("fc_")}, {"call_id", "call_" + openai::call_id(id_, 0, output_.size())},
      {"name", call.name},       {"arguments", ""},     {"status", "in_progress"}};
  output_.push_back(std::move(item));
  open_ = true;
  events +=
      event({{"type", "response.output_item.added"}, {"output_index", output_.size() - 1}, {"item", output_.back()}});
  if (call.arguments.empty()) return events;  // they follow
  return events + add_arguments(call.arguments) + close_item("completed");
}

std::string ResponseWriter::add_arguments(const std::string& text) {
  Json& item = output_.back();
  item["arguments"].get_ref<std::string&>() += text;
  return event({{"type", "response.function_call_arguments.delta"},
                {"item_id", item["id"]},
                {"output_index", output_.size() - 1},
                {"delta", text}});
}

std::string ResponseWriter::close_call(const Json& item) {
  const std::size_t index = output_.size() - 1;
  const std::string events = event({{"type", "response.function_call_arguments.done"},
                                    {"item_id", item["id"]},
                                    {"output_index", index},
                                    {"name", item["name"]},
                                    {"arguments", item["arguments"]}});
  return events + event({{"type", "response.output_item.done"}, {"output_index", index}, {"item", item}});
}

std::string ResponseWriter::add(const std::vector<AnswerPart>& parts) {
  std::string events;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::call) {
      events += add_call(part.call);
    } else if (part.kind == AnswerPart::Kind::arguments) {
      events += add_arguments(part.text);
    } else if (!part.text.empty()) {
      events += add_text(part);
    }
  }
  return events;
}

std::string ResponseWriter::generated(std::size_t, const GeneratedToken& token) {
  return add(parts_of(reader_.get(), token));
}

std::string ResponseWriter::finished(std::size_t, FinishReason reason, const std::string& rest, const Usage& usage) {
  std::string events = add(last_parts(reader_.get(), rest));
  if (output_.empty()) events += open_item(true);  // an answer of nothing is one all the same, to go on from
  status_ = reason == FinishReason::length ? "incomplete" : "completed";
  events += close_item(status_.c_str());
  usage_ = {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
            {"hayloft", statement_members(usage.attention)}};
  complete_ = true;
  const openai::ResponseTurn& turn = *request_.turn;
  if (turn.store) {
    Json messages = turn.messages;
    add_output(output_, messages);
    turn.store->put(id_, messages, whole());
  }
  return events + event({{"type", "response." + status_}, {"response", response()}});
}

std::string ResponseWriter::failed(int status, const std::string& message) {
  status_ = "failed";
  error_ = {{"code", status < 500 ? "invalid_prompt" : "server_error"}, {"message", message}};
  return event({{"type", "response.failed"}, {"response", response()}});
}

}  // namespace hayloft::runtime::serve::responses
