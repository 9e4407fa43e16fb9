#include "runtime/serve/http/routes.h"

#include <fmt/format.h>

#include "runtime/serve/http/metrics.h"
#include "runtime/serve/http/page.h"
#include "runtime/serve/openai/answer.h"
#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::http {
namespace {

using nlohmann::json;
using openai::Fields;

Reply json_reply(const json& object, int status = 200) {
  return {status, "application/json", object.dump(-1, ' ', false, json::error_handler_t::replace)};
}

const std::string contexts_path = "/v1/contexts";

void require_method(const Call& call, const char* method) {
  if (call.method != method) {
    throw openai::BadRequest(405, fmt::format("{} takes {}, not {}", call.path, method, call.method.substr(0, 20)));
  }
}

}  // namespace

Reply error_reply(int status, const std::string& message, const std::string& field) {
  return {status, "application/json", openai::error_body(status, message, field)};
}

Outcome Routes::outcome(const Call& call) const {
  try {
    return dispatch(call);
  } catch (const openai::BadRequest& error) {
    return error_reply(error.status(), error.what(), error.field());
  } catch (const Error& error) {
    return error_reply(400, error.what());
  } catch (const std::bad_alloc&) {
    return error_reply(507, "the system has no memory left for this request");
  } catch (const std::exception& error) {
    return error_reply(500, error.what());
  }
}

Outcome Routes::dispatch(const Call& call) const {
  if (call.path == "/v1/completions") {
    require_method(call, "POST");
    return openai::completion_request(call.body, served_);
  }
  if (call.path == "/v1/chat/completions") {
    require_method(call, "POST");
    return openai::chat_request(call.body, served_);
  }
  if (call.path == "/tokenize") return tokenize(call);
  if (call.path == "/detokenize") return detokenize(call);
  if (call.path == contexts_path) return contexts(call);
  if (call.path.starts_with(contexts_path + "/")) return context(call, call.path.substr(contexts_path.size() + 1));
  if (call.path == "/tokenizer_info" || call.path == "/v1/models" || call.path == "/health" ||
      call.path == "/metrics" || call.path == "/") {
    require_method(call, "GET");
    if (call.path == "/tokenizer_info") return tokenizer_info();
    if (call.path == "/v1/models") return models();
    if (call.path == "/health") return json_reply({{"status", "ok"}});
    if (call.path == "/metrics") return Reply{200, "text/plain; version=0.0.4", metrics_text(engine_.figures())};
    return Reply{200, "text/html; charset=utf-8", std::string(page)};
  }
  if (call.path.starts_with("/v1/models/")) {
    require_method(call, "GET");
    const std::string name = call.path.substr(std::string("/v1/models/").size());
    const json all = json::parse(models().body);
    for (const json& model : all["data"]) {
      if (model["id"] == name) return json_reply(model);
    }
    return error_reply(404, "there is no such model");
  }
  return error_reply(404, "there is nothing at this path");
}

Reply Routes::models() const {
  json data = json::array();
  const auto add = [&](const std::string& id) {
    data.push_back({{"id", id},
                    {"object", "model"},
                    {"created", 0},
                    {"owned_by", "hayloft"},
                    {"chat", served_.chat_template != nullptr}});
  };
  add(served_.name);
  for (const ContextEntry& entry : served_.contexts.list(source_.identity())) {
    if (entry.problem.empty()) add(served_.name + ":" + entry.name);
  }
  return json_reply({{"object", "list"}, {"data", std::move(data)}});
}

Reply Routes::tokenize(const Call& call) const {
  require_method(call, "POST");
  const json object = openai::parse_object(call.body);
  const Fields fields(object);
  if (!fields.find("prompt")) openai::refuse("prompt", "a text is needed");
  const std::vector<std::int32_t> tokens =
      served_.tokenizer.encode(fields.text("prompt", ""), fields.flag("add_special_tokens", true));
  return json_reply({{"count", tokens.size()}, {"max_model_len", served_.config.max_positions}, {"tokens", tokens}});
}

Reply Routes::detokenize(const Call& call) const {
  require_method(call, "POST");
  const json object = openai::parse_object(call.body);
  const json* const list = Fields(object).find("tokens");
  if (!list || !list->is_array()) openai::refuse("tokens", "a list of token ids is needed");
  std::vector<std::int32_t> tokens;
  for (const json& id : *list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7fffffff) {
      openai::refuse("tokens", "a list of token ids is needed");
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  return json_reply({{"prompt", served_.tokenizer.decode(tokens, true)}});
}

Reply Routes::tokenizer_info() const {
  json info{{"tokenizer_class", "hayloft"},
            {"bos_token", nullptr},
            {"eos_token", nullptr},
            {"pad_token", nullptr},
            {"chat_template", nullptr}};
  const std::vector<std::int32_t> special = served_.tokenizer.encode("");
  if (!special.empty()) info["bos_token"] = served_.tokenizer.decode({special.front()}, true);
  if (!served_.config.eos_tokens.empty()) {
    info["eos_token"] = served_.tokenizer.decode({served_.config.eos_tokens.front()}, true);
    info["pad_token"] = info["eos_token"];
  }
  return json_reply(info);
}

void Routes::require_alone() const {
  if (!engine_.options().session.peers().several()) return;
  throw openai::BadRequest(501, "over ranks saved contexts are made by hayloft ingest and removed by hand");
}

Reply Routes::contexts(const Call& call) const {
  if (call.method == "GET") {
    json data = json::array();
    for (const ContextProgress& each : context_jobs_.progress()) {
      data.push_back({{"name", each.name},
                      {"state", each.problem.empty() ? "reading" : "failed"},
                      {"tokens_read", each.done},
                      {"tokens", each.total}});
      if (!each.problem.empty()) data.back()["problem"] = each.problem;
    }
    for (const ContextEntry& entry : served_.contexts.list(source_.identity())) {
      data.push_back({{"name", entry.name},
                      {"state", entry.problem.empty() ? "ready" : "unusable"},
                      {"tokens", entry.tokens},
                      {"bytes", entry.bytes}});
      if (!entry.problem.empty()) data.back()["problem"] = entry.problem;
    }
    return json_reply({{"object", "list"}, {"data", std::move(data)}});
  }
  require_method(call, "POST");
  require_alone();
  const json object = openai::parse_object(call.body);
  const Fields fields(object);
  const std::string name = fields.text("name", "");
  const std::string text = fields.text("text", "");
  if (!fields.find("name") || !fields.find("text")) openai::refuse("", "a name and a text are needed");
  if (!context_jobs_.create(name, text)) return error_reply(429, "too many texts wait to be read");
  return json_reply({{"name", name}, {"state", "reading"}}, 202);
}

Reply Routes::context(const Call& call, const std::string& name) const {
  check_context_name(name);
  if (call.method == "DELETE") {
    require_alone();
    const bool stopped = context_jobs_.cancel(name);
    bool removed = false;
    engine_.forget_context(name, [&] { removed = served_.contexts.remove(name); });
    if (!removed && !stopped) return error_reply(404, "there is no such context");
    return json_reply({{"name", name}, {"deleted", true}});
  }
  require_method(call, "GET");
  const json all = json::parse(contexts({"GET", contexts_path, {}}).body);
  for (const json& each : all["data"]) {
    if (each["name"] == name) return json_reply(each);
  }
  return error_reply(404, "there is no such context");
}

}  // namespace hayloft::runtime::serve::http
