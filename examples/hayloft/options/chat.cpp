#include "examples/hayloft/options/chat.h"

#include <optional>

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "runtime/chat/load_chat_template.h"
#include "runtime/chat/sampling_defaults.h"

namespace hayloft::cli {

void add_chat_options(CLI::App& app, ChatChoices& choices) {
  add_text(
      app, "--chat-template", "NAME|TEXT",
      [&choices](const std::string& text) {
        if (text != "model") runtime::ChatTemplate::named(text);  // refuses what it is not
        choices.chat_template = text;
      },
      "How messages are written: model (its own template), llama-2, llama-3, chatml, none, or a text with {task} in it")
      ->default_str("model");
  app.add_option("--system", choices.system, "Message that tells the model how to answer")
      ->type_name("TEXT")
      ->take_last();
  common(app, Section::text, {"--system"});
  advanced(app, Section::text, {"--chat-template"});
}

runtime::ChatTemplate chosen_template(const ChatChoices& choices, const std::filesystem::path& model) {
  if (choices.chat_template != "model") return runtime::ChatTemplate::named(choices.chat_template);
  const std::optional<runtime::ChatTemplate> own = runtime::load_chat_template(model);
  if (!own) {
    fail("{}: the model has no chat template; say how messages are written by --chat-template, as in chatml or llama-3",
         model.string());
  }
  return *own;
}

runtime::SamplerOptions sampling_for(const CLI::App& app, const runtime::SamplerOptions& given,
                                     const std::filesystem::path& model, bool verbose) {
  const std::optional<runtime::SamplerOptions> defaults = runtime::sampling_defaults(model);
  if (!defaults) return given;
  runtime::SamplerOptions options = given;
  const auto take = [&](const char* name, auto& value, auto recommended) {
    if (app.get_option(name)->count() == 0) value = recommended;
  };
  take("--temp", options.temperature, defaults->temperature);
  take("--top-k", options.top_k, defaults->top_k);
  take("--top-p", options.top_p, defaults->top_p);
  take("--min-p", options.min_p, defaults->min_p);
  if (verbose) {
    note(
        "sampling, by the model's recommendations where no option says otherwise: --temp {} --top-k {} --top-p {} "
        "--min-p {}\n",
        options.temperature, options.top_k, options.top_p, options.min_p);
  }
  return options;
}

}  // namespace hayloft::cli
