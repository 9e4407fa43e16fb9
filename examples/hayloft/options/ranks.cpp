#include "examples/hayloft/options/ranks.h"

#include <algorithm>

#include "offload/error.h"
#include "runtime/cluster/rank_attender.h"

namespace hayloft::cli {
namespace {

constexpr const char* own_options[] = {
    "--contexts",      "--api-key-file",  "context",   "--context", "--model",   "--haystack",
    "--file",          "--save",          "--json",    "--plot",    "--profile", "--threads",
    "--oversubscribe", "--host-memory",   "--verbose", "--text",    "--squad",   "--hotpotqa",
    "--triviaqa",      "--cnn-dailymail", "--jsonl",   "--out",     "--append",  "--update"};

}  // namespace

void require_over_ranks(const MachineOptions& machine, const runtime::SessionOptions& session,
                        std::span<const runtime::MethodOptions> methods) {
  if (machine.device == "auto" && machine.cuda.memory_bytes != 0) {
    fail("--gpu-memory: over ranks --device auto is the CPU; add --device cuda, or leave it out");
  }
  if (session.prefill.kind != runtime::PrefillOptions::Kind::exact) {
    fail("--prefill {}: is not there over ranks; use --prefill exact", runtime::name(session.prefill.kind));
  }
  for (const runtime::MethodOptions& method : methods) runtime::cluster::require_over_ranks(method, session.cache);
}

void refuse_over_ranks(const CLI::App& command, std::initializer_list<const char*> options) {
  for (const char* const option : options) {
    if (command.count(option) > 0) fail("{}: is not there over ranks; leave it out, or start hayloft alone", option);
  }
}

std::string shared_options(const CLI::App& command) {
  std::string all = command.get_name();
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    const bool own = std::ranges::any_of(own_options, [&](const char* each) { return name == each; });
    if (option->count() == 0 || own) continue;
    all += fmt::format(" {}={}", name, fmt::join(option->results(), ","));
  }
  return all;
}

}  // namespace hayloft::cli
