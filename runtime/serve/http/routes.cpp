#include "runtime/serve/http/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string_view>

#include "offload/text/visible.h"
#include "runtime/serve/http/context_text.h"
#include "runtime/serve/http/metrics.h"
#include "runtime/serve/http/page.h"
#include "runtime/serve/messages/message_request.h"
#include "runtime/serve/openai/answer.h"
#include "runtime/serve/openai/fields.h"
#include "runtime/serve/reply_writer.h"
#include "runtime/serve/responses/response_request.h"
#include "runtime/serve/responses/response_store.h"

namespace hayloft::runtime::serve::http {
namespace {

using nlohmann::json;
using openai::Field;
using openai::Json;
using openai::Value;

template <class Object>
Reply json_reply(const Object& object, int status = 200) {
  return {status, "application/json", object.dump(-1, ' ', false, Object::error_handler_t::replace)};
}

const std::string contexts_path = "/v1/contexts";
constexpr std::string_view text_of_context = "/text";  // behind a context's path
const std::string models_path = "/v1/models";

// The paths that there are, for those who ask elsewhere.
constexpr const char* kPaths[] = {"/v1/chat/completions",
                                  "/v1/completions",
                                  "/v1/messages",
                                  "/v1/messages/count_tokens",
                                  "/v1/responses",
                                  "/v1/models",
                                  "/v1/contexts",
                                  "/tokenize",
                                  "/detokenize",
                                  "/tokenizer_info",
                                  "/health",
                                  "/metrics",
                                  "/"};

// A method that a path does not take; with those that it takes, as Allow has them.
class WrongMethod : public openai::BadRequest {
 public:
  WrongMethod(const Call& call, std::initializer_list<const char*> methods)
      : BadRequest(
            405, fmt::format("{} takes {}, not {}", call.path, fmt::join(methods, " or "), call.method.substr(0, 20))) {
    for (const std::string method : methods) allow_ += method + (method == "GET" ? ", HEAD, " : ", ");
    allow_ += "OPTIONS";
  }
  const std::string& allow() const { return allow_; }

 private:
  std::string allow_;
};

void require_method(const Call& call, std::initializer_list<const char*> methods) {
  for (const char* method : methods) {
    if (call.method == method) return;
  }
  throw WrongMethod(call, methods);
}

void require_no_query(const Call& call) {
  if (!call.query.empty()) openai::refuse("query", fmt::format("{} takes none", call.path));
}

// The path that was meant: with /v1, with one /v1, without a slash at its end.
std::string_view meant_path(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  for (int prefixes = 0; prefixes < 2; ++prefixes) {
    for (const std::string_view each : kPaths) {
      if (path == each || (each.starts_with("/v1/") && path == each.substr(3))) return each;
    }
    if (!path.starts_with("/v1/")) break;
    path.remove_prefix(3);
  }
  return {};
}

[[noreturn]] void nothing_at(const std::string& path) {
  const std::string shown = visible(std::string_view(path).substr(0, 200), Lines::joined);
  if (const std::string_view meant = meant_path(path); !meant.empty()) {
    throw openai::BadRequest(
        404, fmt::format("there is nothing at {}, but at {}; the API's base URL ends in /v1", shown, meant));
  }
  std::string all;
  for (const char* each : kPaths) all += (all.empty() ? "" : ", ") + std::string(each);
  throw openai::BadRequest(404, fmt::format("there is nothing at {}; there is {}", shown, all));
}

// The bodies of the calls that are answered at once.
struct TokenizeBody {
  const openai::Served& served;
  std::optional<std::string> prompt;
  bool special = true;
};

void require_model(const Value& value, const openai::Served& served) {
  const std::string model = value.text();
  if (model == served.name || model.starts_with(served.name + ":")) return;
  throw openai::BadRequest(404, fmt::format("there is no such model; \"{}\" is", served.name), value.name(),
                           "model_not_found");
}

constexpr Field<TokenizeBody> kTokenizeFields[] = {
    {"prompt", [](const Value& value, TokenizeBody& body) { body.prompt = value.text(); }},
    {"add_special_tokens", [](const Value& value, TokenizeBody& body) { body.special = value.flag(); }},
    {"model", [](const Value& value, TokenizeBody& body) { require_model(value, body.served); }},
    {"return_token_strs", [](const Value& value, TokenizeBody&) { value.only({false}); }},
};

struct DetokenizeBody {
  const openai::Served& served;
  std::optional<std::vector<std::int32_t>> tokens;
};

constexpr Field<DetokenizeBody> kDetokenizeFields[] = {
    {"tokens",
     [](const Value& value, DetokenizeBody& body) {
       body.tokens.emplace();
       const auto vocab = static_cast<std::uint64_t>(body.served.config.vocab_size);
       for (const Json& id : value.list()) {
         if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocab) {
           value.refuse(fmt::format("a list of token ids from 0 to {} is needed", vocab - 1));
         }
         body.tokens->push_back(id.get<std::int32_t>());
       }
     }},
    {"model", [](const Value& value, DetokenizeBody& body) { require_model(value, body.served); }},
};

struct ContextBody {
  std::optional<std::string> name, text;
};

constexpr Field<ContextBody> kContextFields[] = {
    {"name", [](const Value& value, ContextBody& body) { body.name = value.text(); }},
    {"text", [](const Value& value, ContextBody& body) { body.text = value.text(); }},
};

}  // namespace

openai::Api api_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? openai::Api::messages : openai::Api::openai;
}

Reply error_reply_at(std::string_view path, int status, const std::string& message, const std::string& field,
                     const std::string& code) {
  return {status, "application/json", error_text(api_of(path), status, message, field, code)};
}

Reply error_reply(int status, const std::string& message, const std::string& field, const std::string& code) {
  return {status, "application/json", openai::error_body(status, message, field, code)};
}

Outcome Routes::outcome(const Call& call) const {
  const auto reply = [&](int status, const char* message, const std::string& field = {}, const std::string& code = {}) {
    return error_reply_at(call.path, status, message, field, code);
  };
  try {
    return dispatch(call);
  } catch (const WrongMethod& error) {
    Reply refused = reply(error.status(), error.what());
    refused.allow = error.allow();
    return refused;
  } catch (const openai::BadRequest& error) {
    return reply(error.status(), error.what(), error.field(), error.code());
  } catch (const NoMemory& error) {
    return reply(507, error.what());
  } catch (const Error& error) {
    return reply(400, error.what());
  } catch (const std::bad_alloc&) {
    return reply(507, "the system has no memory left for this request");
  } catch (const std::exception& error) {
    return reply(500, error.what());
  }
}

Outcome Routes::dispatch(const Call& call) const {
  if (call.path == "/v1/completions") {
    require_method(call, {"POST"});
    return openai::completion_request(call.body, served_);
  }
  if (call.path == "/v1/chat/completions") {
    require_method(call, {"POST"});
    return openai::chat_request(call.body, served_);
  }
  if (call.path == "/v1/messages") {
    require_method(call, {"POST"});
    return messages::message_request(call.body, served_);
  }
  if (call.path == "/v1/messages/count_tokens") {
    require_method(call, {"POST"});
    const openai::Request request = messages::count_request(call.body, served_);
    const std::int64_t tokens = messages::count_tokens(request, served_);
    require_own_context(request);
    return json_reply(json{{"input_tokens", tokens}});
  }
  if (call.path == "/v1/responses") {
    require_method(call, {"POST"});
    return responses::response_request(call.body, served_);
  }
  constexpr std::string_view responses_path = "/v1/responses/";
  if (call.path.starts_with(responses_path) && served_.responses != nullptr) {
    const std::string id = call.path.substr(responses_path.size());
    if (id.find('/') == std::string::npos) return response(call, id);
  }
  if (call.path == "/tokenize") return tokenize(call);
  if (call.path == "/detokenize") return detokenize(call);
  if (call.path == contexts_path) return contexts(call);
  if (call.path.starts_with(contexts_path + "/") && call.path.size() > contexts_path.size() + 1)
    return context(call, call.path.substr(contexts_path.size() + 1));
  if (call.path == "/tokenizer_info" || call.path == models_path || call.path == "/health" || call.path == "/metrics" ||
      call.path == "/") {
    require_method(call, {"GET"});
    if (call.path == "/tokenizer_info") return tokenizer_info();
    if (call.path == models_path) return models();
    if (call.path == "/health") return json_reply(json{{"status", "ok"}});
    if (call.path == "/metrics") return Reply{200, "text/plain; version=0.0.4", metrics_text(engine_.figures())};
    return Reply{200, "text/html; charset=utf-8", std::string(page)};
  }
  if (call.path.starts_with(models_path + "/") && call.path.size() > models_path.size() + 1) {
    require_method(call, {"GET"});
    const std::string name = call.path.substr(models_path.size() + 1);
    const json all = json::parse(models().body);
    for (const json& model : all["data"]) {
      if (model["id"] == name) return json_reply(model);
    }
    return error_reply(404, fmt::format("there is no such model; \"{}\" is", served_.name), "model", "model_not_found");
  }
  nothing_at(call.path);
}

void Routes::require_own_context(const openai::Request& request) const {
  const std::string& context = request.generations.front().context;
  if (!context.empty()) offload::Snapshot::open(served_.contexts.path(context)).require_model(source_.identity());
}

Reply Routes::response(const Call& call, const std::string& id) const {
  require_method(call, {"GET", "DELETE"});
  const Reply gone = error_reply(404, "there is no such response, or not any more");
  if (call.method == "DELETE") {
    if (!served_.responses->remove(id)) return gone;
    return json_reply(json{{"id", id}, {"object", "response"}, {"deleted", true}});
  }
  if (!call.query.empty()) openai::refuse("query", "a response is told whole and at once: leave it out");
  const std::string response = served_.responses->response(id);
  return response.empty() ? gone : Reply{200, "application/json", response};
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
  return json_reply(json{{"object", "list"}, {"data", std::move(data)}});
}

Reply Routes::tokenize(const Call& call) const {
  require_method(call, {"POST"});
  const Json object = openai::parse_object(call.body);
  TokenizeBody body{served_, {}};
  openai::read_fields<TokenizeBody>(object, call.path, "", {kTokenizeFields}, {}, body);
  if (!body.prompt) openai::refuse("prompt", "a text is needed");
  const std::vector<std::int32_t> tokens = served_.tokenizer.encode(*body.prompt, body.special);
  return json_reply(
      json{{"count", tokens.size()}, {"max_model_len", served_.config.max_positions}, {"tokens", tokens}});
}

Reply Routes::detokenize(const Call& call) const {
  require_method(call, {"POST"});
  const Json object = openai::parse_object(call.body);
  DetokenizeBody body{served_, {}};
  openai::read_fields<DetokenizeBody>(object, call.path, "", {kDetokenizeFields}, {}, body);
  if (!body.tokens) openai::refuse("tokens", "a list of token ids is needed");
  return json_reply(json{{"prompt", served_.tokenizer.decode(*body.tokens, true)}});
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
  require_no_query(call);
  if (call.method == "GET") {
    json data = json::array();
    for (const ContextProgress& each : context_jobs_.progress()) {
      // It has just been read, or failed here and was saved by another program since.
      if (served_.contexts.contains(each.name)) continue;
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
    return json_reply(json{{"object", "list"}, {"data", std::move(data)}});
  }
  require_method(call, {"GET", "POST"});
  require_alone();
  const Json object = openai::parse_object(call.body);
  ContextBody body;
  openai::read_fields<ContextBody>(object, call.path, "", {kContextFields}, {}, body);
  if (!body.name || !body.text) openai::refuse("", "a name and a text are needed");
  if (!context_jobs_.create(*body.name, *body.text)) return error_reply(429, "too many texts wait to be read");
  return json_reply(json{{"name", *body.name}, {"state", "reading"}}, 202);
}

Reply Routes::context(const Call& call, const std::string& name) const {
  if (name.ends_with(text_of_context)) {
    require_method(call, {"GET"});
    return context_text(call, name.substr(0, name.size() - text_of_context.size()), served_, source_.identity());
  }
  check_context_name(name);
  require_no_query(call);
  if (call.method == "DELETE") {
    require_alone();
    const bool stopped = context_jobs_.cancel(name);
    bool removed = false;
    engine_.forget_context(name, [&] { removed = served_.contexts.remove(name); });
    if (!removed && !stopped) return error_reply(404, "there is no such context");
    return json_reply(json{{"name", name}, {"deleted", true}});
  }
  require_method(call, {"GET", "DELETE"});
  const json all = json::parse(contexts({"GET", contexts_path, {}}).body);
  for (const json& each : all["data"]) {
    if (each["name"] == name) return json_reply(each);
  }
  return error_reply(404, "there is no such context");
}

}  // namespace hayloft::runtime::serve::http
