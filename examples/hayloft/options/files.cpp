#include "examples/hayloft/options/files.h"

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "offload/text/format.h"

namespace hayloft::cli {

void add_model_option(CLI::App& app, std::string& directory, const std::string& otherwise) {
  const std::string suffix = otherwise.empty() ? "" : " [" + otherwise + "]";
  app.add_option("-m,--model", directory, "Model: GGUF file or Hugging Face folder" + suffix)
      ->type_name("MODEL")
      ->take_last();
  common(app, Section::model, {"--model"});
}

void add_context_argument(CLI::App& app, std::string& context, const std::string& help) {
  app.add_option("context", context, help)->type_name("CTX.hay")->required();
  common(app, Section::model, {"context"});
}

void add_json_option(CLI::App& app, std::string& file, const std::string& help) {
  app.add_option("--json", file, help + "; - is standard output")->type_name("FILE|-")->take_last();
  common(app, Section::output, {"--json"});
}

void add_context_lengths_option(CLI::App& app, std::vector<std::int64_t>& lengths) {
  std::string usual;
  for (const std::int64_t length : lengths) usual += (usual.empty() ? "" : ",") + format_count(length);
  add_text(
      app, "-c,--ctx-size", "TOKENS,...", [&lengths](const std::string& text) { lengths = context_lengths(text); },
      "Context lengths, as in 4096,64k,1M")
      ->default_str(usual);
  common(app, Section::context, {"--ctx-size"});
}

}  // namespace hayloft::cli
