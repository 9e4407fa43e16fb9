#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "examples/hayloft/command.h"
#include "examples/hayloft/link_rates.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/ranks.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_output.h"
#include "gpu/nvidia.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/list.h"
#include "runtime/machine/link_report.h"
#include "runtime/machine/measure_network.h"
#include "runtime/machine/profile.h"

// hayloft link: what this machine's memory and the link to its GPU give, as tables and as the profile that plan reads;
// over ranks what the network between them gives.
namespace hayloft::cli {
namespace {

constexpr const char* link_examples = R"(Examples:
  hayloft link
      measure for about ten seconds and keep the profile where plan looks for it
  hayloft link --footprint 4GiB --seconds 30 --format csv
  hayloft link -t 1 --profile one-thread.json --json -
  hayloft link --seconds 60 --tests memory,matrices,copies --json here.json
      some of it, for longer; no profile is kept
  mpirun -n 4 -H a,b,c,d hayloft link --json network.json
      the network between ranks instead, for hayloft plan --ranks 4 --network network.json)";

constexpr std::uint64_t least_link_footprint = std::uint64_t{64} << 20;

enum class Format : std::uint8_t { md, csv };

class LinkCommand : public Command {
 public:
  explicit LinkCommand(CLI::App& app) : app_(&app) {
    app.footer(link_examples);
    add_text(
        app, "--footprint", "BYTES",
        [this](const std::string& text) { options_.footprint_bytes = read_bytes("--footprint", text); },
        "Memory to measure the operations of decoding over, 64MiB at least [1GiB, or a quarter of what is free]");
    add_text(
        app, "--link-footprint", "BYTES,...", [this](const std::string& text) { read_footprints(text); },
        "Host memory to measure the link to a GPU over [1, 4, 16 and 64GiB, as far as half of what is free reaches and "
        "pinning it takes 20 s at most]");
    add_number(app, "--seconds", "S", options_.seconds, 0.1, 3600, "About how long to measure");
    add_text(
        app, "--tests", "NAME,...", [this](const std::string& text) { read_tests(text); },
        "What to measure [all, which alone make a profile]");
    app.add_flag("--list-tests", list_tests_, "Print what --tests can name");
    add_machine_options(app, machine_);
    app.add_option("--profile", profile_,
                   "Where to keep the profile that was measured [hayloft/profile.json in the user's cache folder]")
        ->type_name("FILE")
        ->take_last();
    add_json_option(app, json_, "Write everything measured here, to a file as it comes");
    add_choice<Format>(app, "--format", {{"md", Format::md}, {"csv", Format::csv}}, "Format of the rates",
                       [this](Format format) { format_ = format; })
        ->default_str("md");
    common(app, Section::task, {"--seconds", "--footprint", "--tests", "--list-tests"});
    advanced(app, Section::task, {"--link-footprint"});
    common(app, Section::device, {"--profile"});
    common(app, Section::output, {"--format"});
  }

  void check() override {
    if (options_.footprint_bytes != 0 && options_.footprint_bytes < (std::uint64_t{64} << 20)) {
      fail("--footprint {}: must be at least 64MiB, to be more than small caches hold",
           format_bytes(options_.footprint_bytes));
    }
    if (list_tests_) {
      for (const CLI::Option* option : app_->get_options()) {
        if (option->count() == 0 || option->check_name("--list-tests")) continue;
        fail("{}: --list-tests prints names and measures nothing; leave one of them out", option->get_name());
      }
    }
    if (json_ == "-" && app_->count("--format") > 0) {
      fail("--format: is of the table, and --json - prints JSON in its place; leave one of them out");
    }
    const bool some = !options_.tests.empty() || !link_options_.tests.empty();
    if (some && options_.tests.empty() && app_->count("--footprint") > 0) {
      note("note: --footprint has no effect: none of --tests measures the host\n");
    }
    if (some && link_options_.tests.empty() && app_->count("--link-footprint") > 0) {
      note("note: --link-footprint has no effect: none of --tests measures the link to a GPU\n");
    }
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_, {"--footprint", "--link-footprint", "--tests", "--list-tests", "--profile"});
  }

  void run() override {
    if (over_ranks()) return measure_ranks();
    if (list_tests_) return print(tests_text());
    const TextOutput json(json_);
    json.check();
    if (!options_.tests.empty() || !link_options_.tests.empty()) return measure_some(json);
    const std::filesystem::path path =
        profile_.empty() ? runtime::plan::default_profile_path() : std::filesystem::path(profile_);
    if (profile_.empty()) {
      runtime::plan::require_profile_writable(path);
    } else {
      offload::require_writable(path);  // whose folder may be a slip of the hand
    }

    options_.version = HAYLOFT_VERSION;
    std::optional<Environment> environment(std::in_place, machine_);
    say_cautions(*environment);
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
      print(table ? rates_table(profile) : rates_csv(profile));
      if (link) print("\n" + (table ? runtime::plan::link_table(*link) : runtime::plan::link_csv(*link)));
    }
    std::vector<std::string> skipped = profile.skipped;
    if (!link) add_link_skipped(skipped);
    for (const std::string& what : skipped) note("skipped: {}\n", what);
    if (link) skipped.insert(skipped.begin(), link->skipped.begin(), link->skipped.end());  // its table has said so
    json.write(whole_json(profile, link, skipped));
    say_reliability(profile, link);
    note("profile: {}\n", shown(path.string()));
  }

 private:
  void read_tests(const std::string& text) {
    options_.tests.clear();
    link_options_.tests.clear();
    for (const std::string_view item : split_list(text)) {
      const auto is = [&](const auto& test) { return item == test.name; };
      const bool host =
          std::any_of(std::begin(runtime::plan::profile_tests), std::end(runtime::plan::profile_tests), is);
      const bool link = std::any_of(std::begin(gpu::link_tests), std::end(gpu::link_tests), is);
      if (!host && !link) fail("--tests {}: no test has this name; hayloft link --list-tests has them", item);
      (host ? options_.tests : link_options_.tests).emplace_back(item);
    }
  }

  static std::string tests_text() {
    std::string text = "host:\n";
    for (const auto& test : runtime::plan::profile_tests) text += fmt::format("  {:18}{}\n", test.name, test.what);
    text += "link to a GPU:\n";
    for (const auto& test : gpu::link_tests) text += fmt::format("  {:18}{}\n", test.name, test.what);
    return text;
  }

  // The network between ranks, and nothing of the machines.
  void measure_ranks() const {
    const TextOutput json(json_);
    prepare_together([&] { json.check(); });
    runtime::SessionOptions none;
    join_ranks({"", shared_options(*app_), ""}, none);
    const runtime::plan::NetworkReport report =
        runtime::plan::measure_network(*ranks(), {options_.seconds, HAYLOFT_VERSION}, [](const std::string& what) {
          note("network: {}\n", what);
          check_interrupted();
        });
    if (!json.to_stdout()) {
      print(format_ == Format::md ? runtime::plan::network_table(report) : runtime::plan::network_csv(report));
    }
    json.write(runtime::plan::network_json(report));
    if (!report.share_machines()) return;
    note("{} this measured {}memory and not a network; one rank a machine measures that\n",
         report.on_one_machine() ? "all ranks are on one machine:" : "ranks share machines:",
         report.on_one_machine() ? "" : "in part ");
  }

  // Measures those of --tests: a table and JSON, and no profile, whose every rate plans may ask for.
  void measure_some(const TextOutput& json) {
    if (!profile_.empty()) fail("--profile: a profile is made of all tests; leave --tests out, or --profile");
    options_.version = HAYLOFT_VERSION;
    const Environment environment(machine_);
    std::optional<gpu::LinkReport> link;
    if (!link_options_.tests.empty()) {
      if (environment.backend->name() != std::string("cuda")) {
        fail("--tests: {} measures the link to a GPU, and none is used (hayloft --list-devices says why)",
             link_options_.tests.front());
      }
      say_cautions(environment);
      link_options_.device = machine_.cuda.device;
      link = gpu::measure_link(environment.topology, environment.threads, link_options_,
                               [&](const std::string& what, const gpu::LinkReport&) {
                                 note("link: {}\n", what);
                                 check_interrupted();
                               });
    }
    runtime::plan::MachineProfile profile;
    profile.origin = runtime::plan::origin_here(environment.topology, HAYLOFT_VERSION);
    profile.origin.seconds = options_.seconds;
    if (!options_.tests.empty()) {
      profile = runtime::plan::measure_profile(*environment.backend, *environment.arena, environment.topology, options_,
                                               [](const std::string&) { check_interrupted(); });
    }
    if (!json.to_stdout()) {
      const bool table = format_ == Format::md;
      if (!options_.tests.empty()) print(table ? rates_table(profile) : rates_csv(profile));
      if (link) print(table ? runtime::plan::link_table(*link) : runtime::plan::link_csv(*link));
    }
    for (const std::string& what : profile.skipped) note("skipped: {}\n", what);
    json.write(whole_json(profile, link, profile.skipped));
    say_reliability(profile, link);
  }

  // These belong to a link that is measured.
  static void say_cautions(const Environment& environment) {
    if (environment.backend->name() != std::string("cuda")) return;
    for (const std::string& caution : gpu::link_cautions()) note("note: {}\n", caution);
  }

  static void say_reliability(const runtime::plan::MachineProfile& profile,
                              const std::optional<gpu::LinkReport>& link) {
    const auto count = [](const auto& all) {
      return std::count_if(all.begin(), all.end(), [](const auto& one) { return one.unreliable(); });
    };
    std::size_t all = profile.spreads.size();
    auto bad = count(profile.spreads);
    if (link) all += link->figures.size(), bad += count(link->figures);
    if (bad == 0) return;
    note(
        "unreliable: {} of {} figures, marked *, are of fewer than 4 turns or of turns that lie more than a quarter of "
        "them apart; --seconds {:g} measures for longer\n",
        bad, all, 4 * profile.origin.seconds);
  }

  void read_footprints(const std::string& text) {
    link_options_.footprints.clear();
    for (const std::string_view item : split_list(text)) {
      const std::uint64_t bytes = read_bytes("--link-footprint", std::string(item));
      if (bytes < least_link_footprint) fail("--link-footprint {}: must be at least 64MiB", item);
      link_options_.footprints.push_back(bytes);
    }
  }

  // Adds what a machine without a GPU leaves out.
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

  const CLI::App* app_;
  MachineOptions machine_;
  runtime::plan::ProfileOptions options_;
  gpu::LinkOptions link_options_;
  std::string profile_;
  bool list_tests_ = false;
  std::string json_;
  Format format_ = Format::md;
};

}  // namespace

std::unique_ptr<Command> make_link_command(CLI::App& app) {
  return std::make_unique<LinkCommand>(app);
}

}  // namespace hayloft::cli
