#include <ctime>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "offload/text/ordered_json.h"
#include "runtime/chat/chat_template.h"
#include "runtime/chat/jinja/template.h"

// Renders templates for scripts/check-templates: reads one JSON object a line, {"name", "source", "variables", "now"},
// and answers each with one, {"text"} or {"error"}. With "messages", a text of JSON, it writes them as a conversation;
// "variables" are a text then, too, and "special" has the special tokens.
namespace {

using nlohmann::ordered_json;

std::string conversation(const ordered_json& request) {
  std::vector<std::pair<std::string, std::string>> special;
  for (const auto& [name, text] : request.at("special").items()) special.emplace_back(name, text);
  const auto chat = hayloft::runtime::ChatTemplate::from_source(request.at("source").get<std::string>(),
                                                                request.at("name"), std::move(special));
  hayloft::runtime::ChatOptions options;
  options.add_generation_prompt = request.at("add_generation_prompt");
  options.variables = request.at("variables");
  options.now = request.at("now");
  return chat.render_json(request.at("messages").get<std::string>(), options);
}

std::string rendering(const ordered_json& request) {
  const hayloft::runtime::jinja::Template parsed(request.at("source").get<std::string>(), request.at("name"));
  return parsed.render(request.at("variables"), request.at("now").get<std::time_t>());
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    ordered_json answer;
    try {
      const ordered_json request = hayloft::parse_ordered_json(line);
      answer["text"] = request.contains("messages") ? conversation(request) : rendering(request);
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
