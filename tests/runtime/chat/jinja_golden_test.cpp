#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "offload/error.h"
#include "runtime/chat/chat_template.h"
#include "runtime/chat/jinja/template.h"

// Small templates against Jinja, recorded by scripts/make-template-goldens.py.
namespace hayloft::runtime::jinja {
namespace {

using nlohmann::ordered_json;

TEST(JinjaGolden, RendersAndRefusesAsRecorded) {
  const auto path = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/templates.json";
  const ordered_json recorded = ordered_json::parse(std::ifstream(path));
  ASSERT_GT(recorded.at("cases").size(), 100U);
  for (const ordered_json& c : recorded.at("cases")) {
    const auto source = c.at("template").get<std::string>();
    SCOPED_TRACE(source);
    if (c.contains("text")) {
      try {
        EXPECT_EQ(Template(source, "test").render(recorded.at("variables")), c.at("text").get<std::string>());
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    } else {
      EXPECT_THROW(Template(source, "test").render(recorded.at("variables")), Error);
    }
  }
}

// Conversations as clients send them, in the form that a template was written for.
TEST(JinjaGolden, WritesConversationsAsRecorded) {
  const auto path = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/templates.json";
  const ordered_json recorded = ordered_json::parse(std::ifstream(path));
  std::vector<std::pair<std::string, std::string>> special;
  for (const auto& [name, text] : recorded.at("special").items()) special.emplace_back(name, text);
  ASSERT_GT(recorded.at("conversations").size(), 50U);
  for (const ordered_json& c : recorded.at("conversations")) {
    const auto source = c.at("template").get<std::string>();
    SCOPED_TRACE(c.at("sent").get<std::string>() + ": " + source);
    const ordered_json& sent = recorded.at("sent").at(c.at("sent").get<std::string>());
    ChatOptions options;
    options.variables = sent.at("variables").get<std::string>();
    const ChatTemplate chat = ChatTemplate::from_source(source, "test", special);
    const auto messages = sent.at("messages").get<std::string>();
    if (!c.contains("text")) {
      EXPECT_THROW(chat.render_json(messages, options), Error);
      continue;
    }
    try {
      EXPECT_EQ(chat.render_json(messages, options), c.at("text").get<std::string>());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime::jinja
