#include "runtime/serve/http/metrics.h"

#include <gtest/gtest.h>

namespace hayloft::runtime::serve::http {
namespace {

TEST(Metrics, CountExpertsAndWhatOfThemCrossedTheLink) {
  EngineFigures figures;
  figures.experts.asked = 30, figures.experts.held = 20, figures.experts.link_bytes = 4000;
  const std::string text = metrics_text(figures);
  for (const char* line :
       {"\nhayloft_experts_asked_total 30\n", "\nhayloft_experts_held_total 20\n",
        "\nhayloft_experts_link_bytes_total 4000\n", "\n# TYPE hayloft_experts_link_bytes_total counter\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve::http
