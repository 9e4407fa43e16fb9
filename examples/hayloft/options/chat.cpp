#include "examples/hayloft/options/chat.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

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

namespace {

runtime::ChatTemplate template_by_name(const std::string& name, const std::filesystem::path& model) {
  if (name != "model") return runtime::ChatTemplate::named(name);
  const std::optional<runtime::ChatTemplate> own = runtime::load_chat_template(model);
  if (!own) {
    fail("{}: the model has no chat template; say how messages are written by --chat-template, as in chatml or llama-3",
         model.string());
  }
  return *own;
}

// Throws Error where the template refuses a system message, or leaves it out.
void require_place(const runtime::ChatTemplate& chat, const std::string& system) {
  const std::array<runtime::ChatMessage, 2> messages{{{"system", system}, {"user", "?"}}};
  const runtime::ChatOptions options;  // of one moment
  const std::string text = named("--system", [&] { return chat.render(messages, options); });
  if (text.find(system) != std::string::npos) return;
  if (text == chat.render(std::span(messages).last(1), options)) fail("--system: the chat template leaves it out");
}

}  // namespace

runtime::ChatTemplate chosen_template(const ChatChoices& choices, const std::filesystem::path& model) {
  runtime::ChatTemplate chat = template_by_name(choices.chat_template, model);
  if (!choices.system.empty()) require_place(chat, choices.system);
  return chat;
}

namespace {

// The rules that do something, as a command line has them or a generation_config.json.
std::string rules_text(const runtime::LogitRules& rules) {
  std::string text;
  const auto add = [&](const char* name, auto value, auto off) {
    if (value != off) text += fmt::format(" {} {}", name, value);
  };
  const auto list = [&](const char* name, const auto& values) {
    if (!values.empty()) text += fmt::format(" {} ({})", name, values.size());
  };
  add("--repeat-penalty", rules.repetition_penalty, 1.0f);
  if (rules.repetition_penalty != 1) add("--repeat-last-n", rules.repetition_window, std::int64_t{0});
  add("--frequency-penalty", rules.frequency_penalty, 0.0f);
  add("--presence-penalty", rules.presence_penalty, 0.0f);
  add("--no-repeat-ngram", rules.no_repeat_ngram_size, 0);
  list("--suppress-tokens", rules.suppress_tokens);
  list("--logit-bias", rules.logit_bias);
  list("begin_suppress_tokens", rules.begin_suppress_tokens);
  list("bad_words_ids", rules.bad_words_ids);
  add("min_new_tokens", rules.min_new_tokens, 0);
  add("min_length", rules.min_length, std::int64_t{0});
  return text;
}

}  // namespace

runtime::SamplerOptions sampling_for(const CLI::App& app, const runtime::SamplerOptions& given,
                                     const std::filesystem::path& model, Recommended what, bool verbose) {
  if (app.get_option("--no-model-sampling")->count() > 0) return given;
  const runtime::SamplingDefaults defaults = runtime::sampling_defaults(model);
  for (const std::string& line : defaults.notes) note("note: {}\n", line);
  if (!defaults.found) return given;
  runtime::SamplerOptions options = given;
  const auto take = [&](const char* name, auto& value, const auto& recommended) {
    if (app.get_option(name)->count() == 0) value = recommended;
  };
  runtime::LogitRules& rules = options.rules;
  const runtime::LogitRules& theirs = defaults.options.rules;
  if (app.get_option("--repeat-penalty")->count() == 0) {  // the window is that penalty's
    rules.repetition_penalty = theirs.repetition_penalty;
    take("--repeat-last-n", rules.repetition_window, theirs.repetition_window);
  }
  take("--no-repeat-ngram", rules.no_repeat_ngram_size, theirs.no_repeat_ngram_size);
  take("--suppress-tokens", rules.suppress_tokens, theirs.suppress_tokens);
  rules.begin_suppress_tokens = theirs.begin_suppress_tokens;
  rules.bad_words_ids = theirs.bad_words_ids;
  rules.min_new_tokens = theirs.min_new_tokens;
  rules.min_length = theirs.min_length;
  if (what == Recommended::rules) {
    if (verbose && rules.any()) note("sampling, by the model's recommendations too:{}\n", rules_text(rules));
    return options;
  }
  take("--temp", options.temperature, defaults.options.temperature);
  take("--top-k", options.top_k, defaults.options.top_k);
  take("--top-p", options.top_p, defaults.options.top_p);
  take("--min-p", options.min_p, defaults.options.min_p);
  options.typical_p = defaults.options.typical_p;
  options.epsilon_cutoff = defaults.options.epsilon_cutoff;
  options.eta_cutoff = defaults.options.eta_cutoff;
  if (verbose) {
    note(
        "sampling, by the model's recommendations where no option says otherwise: --temp {} --top-k {} --top-p {} "
        "--min-p {}{}\n",
        options.temperature, options.top_k, options.top_p, options.min_p, rules_text(rules));
  }
  return options;
}

}  // namespace hayloft::cli
