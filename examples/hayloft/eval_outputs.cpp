#include "examples/hayloft/eval_outputs.h"

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "runtime/eval/plot/picture.h"

namespace hayloft::cli {

void EvalOutputs::add_options(CLI::App& app) {
  add_attention_stats_option(app, stats);
  app.add_option("--out", out, "Keep a line of JSON per row; a stopped run continues from them")
      ->type_name("FILE")
      ->take_last();
  add_json_option(app, json, "Write means and rows as JSON");
  app.add_option("--plot", plot, "Draw quality against bytes moved, as SVG")->type_name("FILE")->take_last();
  using runtime::eval::EvalQuality;
  add_choice<EvalQuality>(app, "--plot-by",
                          {{"score", EvalQuality::automatic},
                           {"top1", EvalQuality::top1},
                           {"kl", EvalQuality::kl},
                           {"mass", EvalQuality::mass}},
                          "Quality that --plot draws: the score, the agreement with dense attention, how small the "
                          "KL divergence from it is, or the attention mass caught",
                          [this](EvalQuality quality) { plot_by = quality; })
      ->default_str("score");
  using runtime::eval::EvalCost;
  add_choice<EvalCost>(app, "--plot-against", {{"bytes", EvalCost::bytes}, {"compression", EvalCost::compression}},
                       "What --plot draws it against: the bytes read, or these as a share of dense attention's",
                       [this](EvalCost cost) { plot_against = cost; })
      ->default_str("bytes");
  using Format = std::string (*)(const TextTable&);
  add_choice<Format>(app, "--format", {{"text", aligned}, {"md", markdown}, {"csv", csv}}, "Format of the tables",
                     [this](Format chosen) { format = chosen; })
      ->default_str("text");
  add_number(app, "--effective", "PERCENT", effective_percent, 0, 100,
             "Mean score from which a length counts as effective");
  common(app, Section::output, {"--out", "--plot"});
  advanced(app, Section::output, {"--plot-by", "--plot-against", "--format", "--effective"});
}

void EvalOutputs::write_plot(const runtime::eval::EvalReport& report) const {
  const std::optional<runtime::eval::Scatter> scatter = runtime::eval::eval_scatter(report, plot_by, plot_against);
  if (!scatter) {
    fail(
        "--plot {}: there is nothing to draw; --plot-by top1 and kl need --agreement or perplexity, and --plot-against "
        "compression needs dense attention beside the others",
        plot);
  }
  offload::write_file(plot, runtime::eval::render_scatter(*scatter));
}

}  // namespace hayloft::cli
