#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "runtime/decode/load_tokenizer.h"
#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"
#include "tests/support/temporary_folder.h"

// Requests to the bundled model, whose template writes every message as "ROLE: CONTENT".
namespace hayloft::runtime::serve::openai {

class OpenAiRequestTest : public ::testing::Test {
 protected:
  OpenAiRequestTest()
      : tokenizer_(load_tokenizer(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model")),
        template_(
            ChatTemplate::from_source("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "test")),
        contexts_(folder_.path()),
        served_{"needle", config_, tokenizer_, &template_, contexts_, {.temperature = 1}, 8, 100} {
    config_.vocab_size = tokenizer_.vocab_size();
  }

  int status_of(Request (*read)(std::string_view, const Served&), const std::string& body) const {
    try {
      read(body, served_);
      return 200;
    } catch (const BadRequest& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.status();
    }
  }

  // The field of a refusal; empty: there was none.
  std::string refused_field(Request (*read)(std::string_view, const Served&), const std::string& body) const {
    try {
      read(body, served_);
      return {};
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.status(), 400) << error.what();
      return error.field();
    }
  }

  test::TemporaryFolder folder_;
  ModelConfig config_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  Contexts contexts_;
  Served served_;
};

}  // namespace hayloft::runtime::serve::openai
