#include "runtime/serve/openai/request.h"

#include <fmt/format.h>

#include <limits>
#include <random>

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::openai {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max();
constexpr int kMostLogprobs = 20;
constexpr std::size_t kMostStops = 16;
constexpr int kMostQuotes = 20;
constexpr std::size_t kMostRequestTokens = std::size_t{1} << 25;  // of all prompts of a request, each n times
constexpr int kDefaultAnswer = 16;                                // max_tokens of a completion, as the API has it

std::vector<std::string> stop_strings(const Fields& fields) {
  const json* const value = fields.find("stop");
  if (!value) return {};
  std::vector<std::string> stops;
  for (const json& each : value->is_array() ? *value : json::array({*value})) {
    if (!each.is_string()) refuse("stop", "must be a string or a list of strings");
    stops.push_back(each.get<std::string>());
  }
  if (stops.size() > kMostStops) refuse("stop", fmt::format("at most {} strings", kMostStops));
  return stops;
}

std::vector<std::int32_t> token_ids(const json& list, const Served& served) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  const int vocab = served.config.vocab_size;
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)) {
      refuse("prompt", fmt::format("a list of token ids from 0 to {} is wanted", vocab - 1));
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  return tokens;
}

// "MODEL" or "MODEL:context".
std::string context_of(const Fields& fields, const Served& served, std::string& model) {
  model = fields.text("model", served.name);
  const std::size_t colon = model.starts_with(served.name + ":") ? served.name.size() : std::string::npos;
  if (model == served.name || colon == std::string::npos) {
    if (model != served.name) {
      throw BadRequest(
          404, fmt::format("model \"{}\" is not served here; \"{}\" is", model.substr(0, 200), served.name), "model");
    }
    return {};
  }
  const std::string context = model.substr(colon + 1);
  try {
    if (served.contexts.contains(context)) return context;
  } catch (const BadRequest&) {
    throw;
  } catch (const Error& error) {
    throw BadRequest(400, error.what(), "model");
  }
  throw BadRequest(404, fmt::format("there is no saved context \"{}\"", context), "model");
}

// What both kinds of requests have in common; the tokens are still to come.
GenerationRequest common(const Fields& fields, const Served& served, std::int64_t max_tokens, Request& request) {
  GenerationRequest generation;
  generation.context = context_of(fields, served, request.model);
  generation.max_tokens = static_cast<int>(max_tokens);
  SamplerOptions& sampling = generation.sampling = served.sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", sampling.temperature, 0, 100));
  sampling.top_p = static_cast<float>(fields.number("top_p", sampling.top_p, 0, 1));
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<float>::min();  // the likeliest alone
  sampling.top_k = static_cast<int>(fields.integer("top_k", sampling.top_k, -1, kMostTokens));
  if (sampling.top_k < 0) sampling.top_k = 0;
  sampling.min_p = static_cast<float>(fields.number("min_p", sampling.min_p, 0, 1));
  generation.stop = stop_strings(fields);
  generation.ignore_end = fields.flag("ignore_eos", false);
  if (const json* extension = fields.find("hayloft")) {
    if (!extension->is_object()) refuse("hayloft", "must be an object");
    const Fields own(*extension);
    generation.quotes = static_cast<int>(own.integer("quotes", 0, 0, kMostQuotes));
    generation.audit = own.flag("audit", generation.quotes > 0);
  }
  fields.unsupported("frequency_penalty", 0);
  fields.unsupported("presence_penalty", 0);
  fields.unsupported("logit_bias", json::object());
  request.stream = fields.flag("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) refuse("stream_options", "must be an object");
    request.include_usage = Fields(*options).flag("include_usage", false);
  }
  return generation;
}

// `n` of each generation, each with a seed of its own.
void multiply(const Fields& fields, const Served& served, std::vector<GenerationRequest> generations,
              Request& request) {
  const std::int64_t n = fields.integer("n", 1, 1, served.most_choices);
  if (static_cast<std::int64_t>(generations.size()) * n > served.most_choices) {
    refuse("n", fmt::format("{} prompts with {} answers each: at most {} in one request", generations.size(), n,
                            served.most_choices));
  }
  std::size_t tokens = 0;
  for (const GenerationRequest& each : generations) tokens += each.tokens.size() * static_cast<std::size_t>(n);
  if (tokens > kMostRequestTokens) {
    refuse("n", fmt::format("{} tokens in all prompts for {} answers each: at most {} in one request", tokens, n,
                            kMostRequestTokens));
  }
  std::uint64_t seed = 0;
  if (fields.find("seed")) {
    seed = static_cast<std::uint64_t>(
        fields.integer("seed", 0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()));
  } else {
    std::random_device device;
    seed = (std::uint64_t{device()} << 32) | device();
  }
  const std::vector<std::string> prompts = std::move(request.prompts);
  request.prompts.clear();
  for (std::size_t i = 0; i < generations.size(); ++i) {
    for (std::int64_t copy = 0; copy < n; ++copy) {
      generations[i].sampling.seed = seed + static_cast<std::uint64_t>(copy);
      request.generations.push_back(generations[i]);
      request.prompts.push_back(i < prompts.size() ? prompts[i] : std::string());
    }
  }
}

std::vector<std::int32_t> prompt_tokens(const std::string& text, const GenerationRequest& generation,
                                        const Served& served) {
  return generation.context.empty() ? served.tokenizer.encode_prompt(text) : served.tokenizer.encode_continuation(text);
}

// A message's content: a string, or parts of type "text".
std::string content_of(const json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse("messages", "content must be a string or a list of parts");
  std::string text;
  for (const json& part : *content) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.value("text", json()).is_string()) {
      refuse("messages", "only parts of type \"text\" are supported");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

json messages_of(const Fields& fields) {
  const json* const list = fields.find("messages");
  if (!list || !list->is_array() || list->empty()) refuse("messages", "a list of messages is needed");
  json messages = *list;
  for (json& message : messages) {
    if (!message.is_object() || !message.value("role", json()).is_string()) {
      refuse("messages", "each must be an object with a role and content");
    }
    message["content"] = content_of(message);
    if (message["role"] == "developer") message["role"] = "system";  // the newer name of the same
  }
  return messages;
}

std::string conversation(const Fields& fields, const Served& served) {
  if (!served.chat_template) {
    refuse("messages", "the model has no chat template; use /v1/completions");
  }
  json variables = json::object();
  if (const json* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) refuse("chat_template_kwargs", "must be an object");
    variables = *kwargs;
  }
  if (const json* tools = fields.find("tools")) {
    if (!tools->is_array()) refuse("tools", "must be a list");
    if (!tools->empty()) variables["tools"] = *tools;
  }
  const bool generation_prompt = fields.flag("add_generation_prompt", true);
  const json messages = messages_of(fields);
  try {
    return served.chat_template->render_json(
        messages.dump(-1, ' ', false, json::error_handler_t::replace),
        {generation_prompt, variables.dump(-1, ' ', false, json::error_handler_t::replace)});
  } catch (const BadRequest&) {
    throw;
  } catch (const Error& error) {
    refuse("messages", error.what());
  }
}

}  // namespace

Request completion_request(std::string_view body, const Served& served) {
  const json object = parse_object(body);
  const Fields fields(object);
  Request request;
  request.echo = fields.flag("echo", false);
  request.logprobs = static_cast<int>(fields.integer("logprobs", -1, 0, kMostLogprobs));
  const std::int64_t max_tokens = fields.integer("max_tokens", kDefaultAnswer, request.echo ? 0 : 1, kMostTokens);
  fields.unsupported("suffix", "");
  fields.unsupported("best_of", fields.find("n") ? *fields.find("n") : json(1));
  GenerationRequest pattern = common(fields, served, max_tokens, request);
  pattern.logprobs = request.logprobs;
  pattern.echo = request.echo && request.logprobs >= 0;

  const json* const prompt = fields.find("prompt");
  if (!prompt) refuse("prompt", "a text, a list of texts, token ids or a list of lists of token ids is needed");
  std::vector<GenerationRequest> generations;
  const auto add = [&](const json& each) {
    GenerationRequest generation = pattern;
    if (each.is_string()) {
      generation.tokens = prompt_tokens(each.get_ref<const std::string&>(), generation, served);
      request.prompts.push_back(each.get<std::string>());
    } else if (each.is_array()) {
      generation.tokens = token_ids(each, served);
      request.prompts.push_back(served.tokenizer.decode(generation.tokens));
    } else {
      refuse("prompt", "a text, a list of texts, token ids or a list of lists of token ids is needed");
    }
    if (generation.tokens.empty()) refuse("prompt", "is empty: there is nothing to go on from");
    generations.push_back(std::move(generation));
  };
  const bool list = prompt->is_array() && (prompt->empty() || !prompt->front().is_number());
  if (list) {
    if (prompt->empty()) refuse("prompt", "is empty: there is nothing to go on from");
    if (prompt->size() > static_cast<std::size_t>(served.most_choices)) {
      refuse("prompt", fmt::format("{} prompts: at most {} in one request", prompt->size(), served.most_choices));
    }
    for (const json& each : *prompt) add(each);
  } else {
    add(*prompt);
  }
  multiply(fields, served, std::move(generations), request);
  return request;
}

Request chat_request(std::string_view body, const Served& served) {
  const json object = parse_object(body);
  const Fields fields(object);
  Request request;
  request.style = Style::chat;
  if (fields.flag("logprobs", false)) {
    request.logprobs = static_cast<int>(fields.integer("top_logprobs", 0, 0, kMostLogprobs));
  }
  const char* const newer = "max_completion_tokens";
  const std::int64_t max_tokens =
      fields.integer(fields.find(newer) ? newer : "max_tokens", served.longest_answer, 1, kMostTokens);
  if (const json* format = fields.find("response_format")) {
    if (!format->is_object() || format->value("type", json()) != "text") {
      refuse("response_format", "only {\"type\": \"text\"} is supported");
    }
  }
  fields.unsupported("tool_choice",
                     fields.find("tool_choice") && *fields.find("tool_choice") == "none" ? json("none") : json("auto"));
  fields.unsupported("functions", json::array());
  GenerationRequest generation = common(fields, served, max_tokens, request);
  generation.logprobs = request.logprobs;
  generation.tokens = prompt_tokens(conversation(fields, served), generation, served);
  if (generation.tokens.empty()) refuse("messages", "are empty: there is nothing to go on from");
  request.prompts = {std::string()};
  std::vector<GenerationRequest> generations;
  generations.push_back(std::move(generation));
  multiply(fields, served, std::move(generations), request);
  return request;
}

}  // namespace hayloft::runtime::serve::openai
