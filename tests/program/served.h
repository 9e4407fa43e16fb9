#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/program/http_client.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// The program as a server, on a port that was free.
namespace hayloft::test {

using nlohmann::json;

inline const std::filesystem::path needle_model =
    std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";

// A copy of the needle model with a template that takes tools as Hermes does.
inline std::filesystem::path needle_model_with_tools(const TemporaryFolder& folder) {
  std::filesystem::path model = folder.path() / "model";
  std::filesystem::copy(needle_model, model);
  folder.write("model/chat_template.jinja",
               "{% if tools %}{% for t in tools %}{{ t | tojson }} call by <tool_call>\n{% endfor %}{% endif %}"
               "{% for m in messages %}{{ m.role }}: {{ m.content }}"
               "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>"
               "{% endfor %}{% endif %}\n"
               "{% endfor %}");
  return model;
}

class Served {
 public:
  explicit Served(const std::vector<std::string>& options = {}, const std::filesystem::path& model = needle_model) {
    std::vector<std::string> arguments{"serve", "-m", model.string(), "--port", "0", "-t", "2"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    program_.emplace(arguments);
    wait_until_it_listens();
  }
  // Started by another program.
  explicit Served(Command command) {
    program_.emplace(std::move(command));
    wait_until_it_listens();
  }

  HttpAnswer post(const std::string& path, const json& body, const std::string& fields = {}) const {
    return http(port, "POST", path, body.dump(), "Content-Type: application/json\r\n" + fields);
  }
  json completed(const json& body) const {
    const HttpAnswer answer = post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body, nullptr, false);
  }
  double metric(const std::string& name) const {
    const std::string text = "\n" + http(port, "GET", "/metrics").body;
    const std::size_t at = text.find("\nhayloft_" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 10));
  }
  Program& program() { return *program_; }

  std::uint16_t port = 0;

 private:
  void wait_until_it_listens() {
    while (program_->running()) {
      const std::string said = program_->error_output();
      const std::size_t at = said.find("at http://127.0.0.1:");
      if (at == std::string::npos || said.find('\n', at) == std::string::npos) {
        ::sched_yield();
        continue;
      }
      port = static_cast<std::uint16_t>(std::stoi(said.substr(at + 20)));
      return;
    }
    ADD_FAILURE() << program_->error_output();
  }

  std::optional<Program> program_;
};

inline json greedy(const json& prompt, int tokens) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

}  // namespace hayloft::test
