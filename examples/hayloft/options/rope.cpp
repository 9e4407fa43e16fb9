#include "examples/hayloft/options/rope.h"

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "offload/text/format.h"

namespace hayloft::cli {

void add_rope_options(CLI::App& app, runtime::RopeOverrides& rope) {
  using runtime::RopeScaling;
  add_choice<RopeScaling>(app, "--rope-scaling",
                          {{"none", RopeScaling::none}, {"linear", RopeScaling::linear}, {"yarn", RopeScaling::yarn}},
                          "How RoPE is stretched for contexts longer than the model was made for [as the model says]",
                          [&rope](RopeScaling scaling) { rope.scaling = scaling; });
  add_number(app, "--rope-scale", "N", rope.factor, 1, 1e6, "By how much it is stretched [as the model says]");
  add_text(
      app, "--yarn-orig-ctx", "TOKENS",
      [&rope](const std::string& text) { rope.original_positions = context_length(text); },
      "yarn: context that the model was trained with [as the model says]");
  add_number(app, "--rope-freq-base", "N", rope.base, 1, 1e12, "RoPE's base (theta) [as the model says]");
  advanced(app, Section::model, {"--rope-scaling", "--rope-scale", "--yarn-orig-ctx", "--rope-freq-base"});
}

}  // namespace hayloft::cli
