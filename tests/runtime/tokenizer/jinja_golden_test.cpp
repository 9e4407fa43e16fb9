#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "offload/error.h"
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

}  // namespace
}  // namespace hayloft::runtime::jinja
