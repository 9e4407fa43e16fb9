#include <unistd.h>

#include <ctime>
#include <fstream>
#include <string_view>

#include "offload/error.h"
#include "runtime/machine/profile.h"

// Says where a profile comes from, and whether it can be trusted here.
namespace hayloft::runtime::plan {
namespace {

constexpr int days_until_old = 180;  // kernels, drivers and neighbours change within half a year

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// As Linux has it; empty where a processor has no such name, as on 64-bit Arm.
std::string processor_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  constexpr std::string_view field = "model name";
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with(field)) continue;
    const std::size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Days since 1970 of "2026-11-23T...", or nothing when it is no date.
std::optional<int> days_of(const std::string& date) {
  std::tm utc{};
  const char* const rest = ::strptime(date.c_str(), "%Y-%m-%d", &utc);
  if (!rest || (*rest != 'T' && *rest != '\0')) return std::nullopt;
  return static_cast<int>(::timegm(&utc) / (24 * 60 * 60));
}

}  // namespace

ProfileOrigin origin_here(const offload::Topology& topology, const std::string& version) {
  ProfileOrigin here;
  here.host = host_name();
  here.processor = processor_model();
  here.date = utc_now();
  here.version = version;
  here.memory_bytes = topology.memory_bytes();
  return here;
}

ProfileDoubt doubt(const ProfileOrigin& profile, const ProfileOrigin& here) {
  if (!profile.known()) return {false, "does not say which machine it is of"};
  if (profile.processor != here.processor) {
    return {true, fmt::format("is of another machine, {} ({})", profile.host, profile.processor)};
  }
  if (profile.host != here.host) {
    return {false, fmt::format("is of another machine with such a processor, {}", profile.host)};
  }
  if (!here.version.empty() && profile.version != here.version) {
    return {false, fmt::format("was measured by hayloft {}", profile.version)};
  }
  const std::optional<int> then = days_of(profile.date);
  const std::optional<int> now = days_of(here.date);
  if (!then || !now) return {false, "does not say when it was measured"};
  if (*now - *then > days_until_old) return {false, fmt::format("is {} days old", *now - *then)};
  return {};
}

}  // namespace hayloft::runtime::plan
