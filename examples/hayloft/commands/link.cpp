#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/streams/environment.h"
#include "examples/hayloft/streams/interrupt.h"
#include "examples/hayloft/streams/messages.h"
#include "examples/hayloft/streams/text_output.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/list.h"
#include "runtime/plan/link_report.h"
#include "runtime/plan/profile.h"

// hayloft link: what this machine's memory and the link to its GPU give, as tables and as the profile that plan reads.
namespace hayloft::cli {
namespace {

constexpr const char* examples = R"(Examples:
  hayloft link
      measure for about ten seconds and keep the profile where plan looks for it
  hayloft link --footprint 4GiB --seconds 30 --format csv
  hayloft link -t 1 --profile one-thread.json --json -)";

constexpr std::uint64_t least_link_footprint = std::uint64_t{64} << 20;

enum class Format : std::uint8_t { md, csv };

class LinkCommand : public Command {
 public:
  explicit LinkCommand(CLI::App& app) {
    app.footer(examples);
    add_text(
        app, "--footprint", "BYTES",
        [this](const std::string& text) { options_.footprint_bytes = read_bytes("--footprint", text); },
        "Memory to measure the operations of decoding over, 64MiB at least [1GiB, or a quarter of what is free]");
    add_text(
        app, "--link-footprint", "BYTES,...", [this](const std::string& text) { read_footprints(text); },
        "Host memory to measure the link to a GPU over [1, 4, 16 and 64GiB, as far as half of what is free reaches and "
        "pinning it takes 20 s at most]");
    add_number(app, "--seconds", "S", options_.seconds, 0.1, 3600, "About how long to measure");
    add_machine_options(app, machine_);
    app.add_option("--profile", profile_,
                   "Where to keep the profile that was measured [hayloft/profile.json in the user's cache folder]")
        ->type_name("FILE")
        ->take_last();
    add_json_option(app, json_, "Write everything measured here, to a file as it comes");
    add_choice<Format>(app, "--format", {{"md", Format::md}, {"csv", Format::csv}}, "Format of the rates",
                       [this](Format format) { format_ = format; })
        ->default_str("md");
    common(app, Section::task, {"--seconds", "--footprint"});
    advanced(app, Section::task, {"--link-footprint"});
    common(app, Section::device, {"--profile"});
    advanced(app, Section::output, {"--format"});
  }

  void check() override {
    if (options_.footprint_bytes != 0 && options_.footprint_bytes < (std::uint64_t{64} << 20)) {
      fail("--footprint {}: must be at least 64MiB, to be more than small caches hold",
           format_bytes(options_.footprint_bytes));
    }
  }

  void run() override {
    const TextOutput json(json_);
    json.check();
    const std::filesystem::path path =
        profile_.empty() ? runtime::plan::default_profile_path() : std::filesystem::path(profile_);
    if (!profile_.empty()) offload::require_writable(path);

    std::optional<Environment> environment(std::in_place, machine_);
    // The link first: its figures are kept as they come, and a profile is nothing until it is whole.
    std::optional<gpu::LinkReport> link;
    if (environment->backend->name() == "cuda") {
      link_options_.device = machine_.cuda.device;
      link = gpu::measure_link(environment->topology, environment->threads, link_options_,
                               [&](const std::string& what, const gpu::LinkReport& so_far) {
                                 note("link: {}\n", what);
                                 if (json.wanted() && !json.to_stdout()) json.write(unfinished_json(so_far));
                                 check_interrupted();
                               });
      if (json.wanted() && !json.to_stdout()) json.write(unfinished_json(*link));
      if (machine_.cuda.link == gpu::LinkChoice()) {
        // The rates of a profile are those of the link that it recommends, not of the one that was there before.
        machine_.cuda.link = runtime::plan::best_link(*link);
        environment.emplace(machine_);
      }
    }
    runtime::plan::MachineProfile profile = runtime::plan::measure_profile(
        *environment->backend, *environment->arena, environment->topology, options_, [&](const std::string& what) {
          if (link) note("profile: {}\n", what);
          check_interrupted();
        });
    if (link) runtime::plan::note_link(*link, profile);
    runtime::plan::write_profile(profile, path);
    if (!json.to_stdout()) {
      const bool table = format_ == Format::md;
      print(table ? markdown(profile) : csv(profile));
      if (link) print("\n" + (table ? runtime::plan::link_table(*link) : runtime::plan::link_csv(*link)));
    }
    std::vector<std::string> skipped = profile.skipped;
    if (!link) add_link_skipped(skipped);
    for (const std::string& what : skipped) note("skipped: {}\n", what);
    if (link) skipped.insert(skipped.begin(), link->skipped.begin(), link->skipped.end());  // its table has said so
    json.write(whole_json(profile, link, skipped));
    note("profile: {}\n", path.string());
  }

 private:
  void read_footprints(const std::string& text) {
    link_options_.footprints.clear();
    for (const std::string_view item : split_list(text)) {
      const std::uint64_t bytes = read_bytes("--link-footprint", std::string(item));
      if (bytes < least_link_footprint) fail("--link-footprint {}: must be at least 64MiB", item);
      link_options_.footprints.push_back(bytes);
    }
  }

  // What a machine without a GPU leaves out.
  void add_link_skipped(std::vector<std::string>& skipped) const {
    const char* why = "no GPU is used (hayloft --list-devices says why)";
    skipped.push_back(
        fmt::format("host to device, device to host, column streams and row gathers over the link: {}", why));
    for (const std::uint64_t footprint : link_options_.footprints) {
      skipped.push_back(fmt::format("--link-footprint {}: {}", format_bytes(footprint), why));
    }
  }

  static std::string unfinished_json(const gpu::LinkReport& link) {
    nlohmann::ordered_json json{{"complete", false}, {"skipped", link.skipped}};
    json.update(nlohmann::ordered_json::parse(runtime::plan::link_json(link)));
    return json_document(json);
  }

  // The profile, and beside its fields what was measured of the link and what was not.
  static std::string whole_json(const runtime::plan::MachineProfile& profile,
                                const std::optional<gpu::LinkReport>& link, const std::vector<std::string>& skipped) {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(runtime::plan::profile_json(profile));
    json["complete"] = true;
    json["skipped"] = skipped;
    if (link) json.update(nlohmann::ordered_json::parse(runtime::plan::link_json(*link)));
    return json_document(json);
  }

  // Calls row(what, head dimension or 0, group or 0, rate, unit) for every figure.
  template <class Row>
  static void each(const runtime::plan::MachineProfile& profile, const Row& row) {
    row("near-memory read", 0, 0, profile.near_read, "GB/s");
    for (const runtime::plan::NearRead& read : profile.near_reads) {
      row(fmt::format("near-memory read, node {}, {} thread{}", read.node, read.threads, read.threads == 1 ? "" : "s"),
          0, 0, read.rate, "GB/s");
    }
    row("weights, one token", 0, 0, profile.weight_stream, "GB/s");
    row("weights, many tokens", 0, 0, profile.matmul, "GFLOP/s");
    row("overhead of a layer", 0, 0, profile.layer_overhead_us, "us");
    for (const runtime::AttentionRates& rates : profile.attention) {
      row("column scan, r=16", rates.head_dim, rates.group, rates.column_scan, "GB/s");
      row("column scan, int8", rates.head_dim, rates.group, rates.int8_scan, "GB/s");
      row("column scan, int4", rates.head_dim, rates.group, rates.int4_scan, "GB/s");
      row("exact scan", rates.head_dim, rates.group, rates.exact_scan, "GB/s");
      row("exact scan, rows", rates.head_dim, rates.group, rates.row_scan, "GB/s");
      row("search of an index", rates.head_dim, rates.group, rates.ann_search, "GB/s");
      row("selecting a position, columns", rates.head_dim, rates.group, rates.column_select_us, "us");
      row("selecting a position, exact", rates.head_dim, rates.group, rates.exact_select_us, "us");
      row("row gather", rates.head_dim, rates.group, rates.row_gather, "GB/s");
      row("dense", rates.head_dim, rates.group, rates.dense, "GB/s");
      row("tail", rates.head_dim, rates.group, rates.tail, "GB/s");
      row("tail, sparq", rates.head_dim, rates.group, rates.sparq_tail, "GB/s");
      row("prompt", rates.head_dim, rates.group, rates.causal, "GFLOP/s");
    }
  }

  static std::string markdown(const runtime::plan::MachineProfile& profile) {
    std::string text = fmt::format("{}; {} threads, over {}\n\n| what | head dimension | group | rate | |\n",
                                   profile.machine, profile.threads, format_bytes(profile.footprint_bytes));
    text += "|---|---:|---:|---:|---|\n";
    const auto size = [](int n) { return n ? fmt::format("{}", n) : std::string(); };
    each(profile, [&](const std::string& what, int d, int group, double rate, const char* unit) {
      text += fmt::format("| {} | {} | {} | {:.4g} | {} |\n", what, size(d), size(group), rate, unit);
    });
    const bool fewer_are_faster =
        std::any_of(profile.near_reads.begin(), profile.near_reads.end(), [&](const runtime::plan::NearRead& read) {
          return read.threads < profile.threads && read.rate > profile.near_read;
        });
    if (fewer_are_faster) {
      text += fmt::format(
          "\nThe profile's near-memory read is by all {} threads, as every search runs; -t gives it fewer.\n",
          profile.threads);
    }
    return text;
  }

  static std::string csv(const runtime::plan::MachineProfile& profile) {
    std::string text = "what,head_dim,group,rate,unit\n";
    each(profile, [&](const std::string& what, int d, int group, double rate, const char* unit) {
      text += fmt::format("\"{}\",{},{},{:.6g},{}\n", what, d, group, rate, unit);
    });
    return text;
  }

  MachineOptions machine_;
  runtime::plan::ProfileOptions options_;
  gpu::LinkOptions link_options_;
  std::string profile_;
  std::string json_;
  Format format_ = Format::md;
};

}  // namespace

std::unique_ptr<Command> make_link_command(CLI::App& app) {
  return std::make_unique<LinkCommand>(app);
}

}  // namespace hayloft::cli
