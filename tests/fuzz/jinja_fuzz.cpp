#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "offload/error.h"
#include "runtime/chat/jinja/template.h"

// Whatever a chat template says, applying it to a conversation either succeeds or throws Error, within its limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nlohmann::ordered_json;
  static const ordered_json variables = {
      {"messages",
       {{{"role", "system"}, {"content", "Be brief."}},
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Wo? \u91DD"}}}}},
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1.5}}}}}}}}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", ordered_json::object()}}}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"}};
  hayloft::runtime::jinja::Limits limits;
  limits.steps = 1 << 16;
  limits.output_bytes = 1 << 20;
  try {
    const hayloft::runtime::jinja::Template parsed({reinterpret_cast<const char*>(data), size}, "fuzz");
    parsed.render(variables, 0, limits);
  } catch (const hayloft::Error&) {
  }
  return 0;
}
