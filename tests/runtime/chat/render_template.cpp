#include <ctime>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/chat/jinja/template.h"

// Renders templates for scripts/check-templates: reads one JSON object a line, {"name", "source", "variables", "now"},
// and answers each with one, {"text"} or {"error"}.
int main() {
  using nlohmann::ordered_json;
  for (std::string line; std::getline(std::cin, line);) {
    ordered_json answer;
    try {
      const ordered_json request = ordered_json::parse(line);
      const hayloft::runtime::jinja::Template parsed(request.at("source").get<std::string>(), request.at("name"));
      answer["text"] = parsed.render(request.at("variables"), request.at("now").get<std::time_t>());
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
