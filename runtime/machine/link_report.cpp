#include "runtime/machine/link_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/text/format.h"
#include "offload/text/json_text.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::uint64_t small_page = 4096;

struct Testcase {
  const char* name;
  const char* description;
};
// Each as nvbandwidth describes it.
constexpr Testcase shared_testcases[] = {
    {"host_to_device_memcpy_ce", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"},
    {"device_to_host_memcpy_ce", "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)"},
    {"host_to_device_memcpy_sm", "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)"},
    {"device_to_host_memcpy_sm", "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)"},
    {"host_device_latency_sm", "memory latency SM CPU(row) <-> GPU(column) (ns)"},
};

struct ColumnTest {
  const char* name;
  LinkColumns MachineProfile::*rates;
};
constexpr ColumnTest column_tests[] = {{"column_stream_f16", &MachineProfile::link_columns_f16},
                                       {"column_stream_int8", &MachineProfile::link_columns_int8},
                                       {"column_stream_int4", &MachineProfile::link_columns_int4}};

std::string size_text(std::uint64_t bytes) {
  return bytes == 0 ? "" : format_bytes(bytes);
}

std::string pages_text(const gpu::LinkFigure& f) {
  return size_text(f.page_bytes) + (f.transparent ? " transparent" : "");
}

std::string node_text(int node) {
  return node < 0 ? "" : fmt::format("{}", node);
}

// Returns the kinds of pages that they lie on at each footprint, once each.
std::string kv_pages_text(const gpu::LinkReport& report) {
  std::vector<std::string> kinds;
  for (const gpu::LinkFigure& f : report.figures) {
    if (f.kv_pages && std::find(kinds.begin(), kinds.end(), pages_text(f)) == kinds.end()) {
      kinds.push_back(pages_text(f));
    }
  }
  return kinds.empty() ? "" : fmt::format("{} pages", fmt::join(kinds, ", "));
}

nlohmann::ordered_json nvbandwidth(const gpu::LinkReport& report) {
  nlohmann::ordered_json testcases = nlohmann::ordered_json::array();
  for (const Testcase& testcase : shared_testcases) {
    // Its matrices have a row per CPU and a column per GPU; ours is the first of either.
    const auto figure = std::find_if(report.figures.begin(), report.figures.end(), [&](const gpu::LinkFigure& f) {
      return f.test == testcase.name && f.page_bytes == small_page;  // as its own allocations have
    });
    if (figure == report.figures.end()) {
      testcases.push_back({{"name", testcase.name}, {"status", "Waived"}});
      continue;
    }
    const double value = figure->value;
    testcases.push_back({{"name", testcase.name},
                         {"status", "Passed"},
                         {"bandwidth_description", testcase.description},
                         {"bandwidth_matrix", {{fmt::format("{:.2f}", value)}}},
                         {"average", value},
                         {"max", figure->runs ? std::max(figure->slowest, figure->fastest) : value},
                         {"min", figure->runs ? std::min(figure->slowest, figure->fastest) : value},
                         {"sum", value}});
  }
  nlohmann::ordered_json json{{"CUDA Runtime Version", report.runtime_number}};
  if (!report.driver_version.empty()) json["Driver Version"] = report.driver_version;
  json["GPU Device list"] = {"0: " + report.device};
  json["git_version"] = "";
  json["testcases"] = std::move(testcases);
  json["version"] = "hayloft.link/1";  // of what wrote it; nvbandwidth's own are like v0.8
  return json;
}

}  // namespace

std::string link_table(const gpu::LinkReport& report) {
  std::string text =
      fmt::format("{}; driver {}for CUDA {}, runtime {}", report.device,
                  report.driver_version.empty() ? "" : report.driver_version + " ", report.driver, report.runtime);
  if (report.node >= 0) text += fmt::format("; NUMA node {}", report.node);
  const double most = gpu::pcie_rate(report.generation, report.lanes);
  if (most > 0) text += fmt::format("; PCIe {} x{}, {:.1f} GB/s each way", report.generation, report.lanes, most);
  if (const std::string pages = kv_pages_text(report); !pages.empty()) text += "; keys and values on " + pages;
  text += "\n\n| test | by | pages | node | footprint | piece | order | value | slowest | fastest | |\n";
  text += "|---|---|---:|---:|---:|---:|---|---:|---:|---:|---|\n";
  for (const gpu::LinkFigure& f : report.figures) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {:.4g}{} | {} | {} | {} |\n", f.test, f.engine,
                        pages_text(f), node_text(f.node), size_text(f.footprint_bytes),
                        f.piece_bytes ? fmt::format("{} B", f.piece_bytes) : "", f.order, f.value,
                        f.unreliable() ? "*" : "", f.runs ? fmt::format("{:.4g}", f.slowest) : "",
                        f.runs ? fmt::format("{:.4g}", f.fastest) : "", f.unit);
  }
  if (std::any_of(report.figures.begin(), report.figures.end(), [](const auto& f) { return f.unreliable(); })) {
    text += "\n\\*: its turns lie more than a quarter of it apart; another run may say otherwise\n";
  }
  for (const std::string& what : report.skipped) text += fmt::format("\nskipped: {}\n", what);
  return text;
}

std::string link_csv(const gpu::LinkReport& report) {
  std::string text =
      "test,engine,page_bytes,node,footprint_bytes,piece_bytes,order,value,unit,transparent,kv_pages,runs,slowest,"
      "fastest\n";
  for (const gpu::LinkFigure& f : report.figures) {
    text += fmt::format("{},{},{},{},{},{},{},{:.6g},{},{:d},{:d},{},{:.6g},{:.6g}\n", f.test, f.engine, f.page_bytes,
                        node_text(f.node), f.footprint_bytes, f.piece_bytes, f.order, f.value, f.unit, f.transparent,
                        f.kv_pages, f.runs, f.slowest, f.fastest);
  }
  return text;
}

std::string link_json(const gpu::LinkReport& report) {
  nlohmann::ordered_json link{{"schema", "hayloft.link/1"},
                              {"device", report.device},
                              {"driver", report.driver},
                              {"runtime", report.runtime},
                              {"driver_version", report.driver_version},
                              {"pcie_generation", report.generation},
                              {"pcie_lanes", report.lanes},
                              {"pcie_GBps", gpu::pcie_rate(report.generation, report.lanes)},
                              {"node", report.node},
                              {"skipped", report.skipped},
                              {"figures", nlohmann::ordered_json::array()}};
  for (const gpu::LinkFigure& f : report.figures) {
    link["figures"].push_back({{"test", f.test},
                               {"engine", f.engine},
                               {"page_bytes", f.page_bytes},
                               {"transparent", f.transparent},
                               {"kv_pages", f.kv_pages},
                               {"node", f.node},
                               {"footprint_bytes", f.footprint_bytes},
                               {"piece_bytes", f.piece_bytes},
                               {"order", f.order},
                               {"value", f.value},
                               {"unit", f.unit},
                               {"runs", f.runs},
                               {"slowest", f.slowest},
                               {"fastest", f.fastest}});
  }
  return json_document({{"link", std::move(link)}, {"nvbandwidth", nvbandwidth(report)}});
}

void note_link(const gpu::LinkReport& report, MachineProfile& profile) {
  profile.link_to_device = profile.link_to_host = std::nullopt;
  profile.link_columns_f16 = profile.link_columns_int8 = profile.link_columns_int4 = {};
  std::uint64_t footprint = 0;
  for (const gpu::LinkFigure& f : report.figures) {
    if (f.kv_pages) footprint = std::max(footprint, f.footprint_bytes);
  }
  for (const gpu::LinkFigure& f : report.figures) {
    if (!f.kv_pages || f.footprint_bytes != footprint || f.unit != "GB/s") continue;
    const auto keep = [&](std::optional<double>& rate) { rate = std::max(rate.value_or(0), f.value); };
    if (f.test.rfind("host_to_device", 0) == 0) keep(profile.link_to_device);
    if (f.test.rfind("device_to_host", 0) == 0) keep(profile.link_to_host);
    const auto columns = std::find_if(std::begin(column_tests), std::end(column_tests),
                                      [&](const ColumnTest& test) { return f.test == test.name; });
    if (columns == std::end(column_tests)) continue;
    LinkColumns& rates = profile.*columns->rates;
    keep(f.engine == "sm" ? rates.sm : f.engine == "ce" ? rates.copy : rates.both);
  }
}

gpu::LinkChoice best_link(const gpu::LinkReport& report) {
  MachineProfile profile;
  note_link(report, profile);
  return profile.best_link();
}

}  // namespace hayloft::runtime::plan
