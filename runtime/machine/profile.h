#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "gpu/link_choice.h"
#include "offload/host/arena.h"
#include "offload/host/topology.h"
#include "runtime/attention/attention_rates.h"

// Knows what a machine gives, measured by `hayloft link` and read by the planner (docs/plan.md). Rates are bytes read
// as the counters count them, over time; GB = 10^9 bytes.
namespace hayloft::runtime::plan {

// Says how fast memory of one NUMA node (its OS index) is read by so many threads, in order.
struct NearRead {
  int node = 0;
  int threads = 0;
  double rate = 0;  // GB/s
};

// GB/s of column runs of one format, scales counted in, read by the multiprocessors, brought in by the copy engine as a
// step queues its copies, and by both at once.
struct LinkColumns {
  std::optional<double> sm;
  std::optional<double> copy;
  std::optional<double> both;
};

// Where, when and how a profile was measured. Profiles of before this was kept have none of it.
struct ProfileOrigin {
  std::string host;                    // the machine's name
  std::string processor;               // its model
  std::string date;                    // UTC, "2026-11-23T09:30:00Z"
  std::string version;                 // of hayloft
  double seconds = 0;                  // --seconds
  std::uint64_t memory_bytes = 0;      // of the machine; 0: not known
  std::uint64_t gpu_memory_bytes = 0;  // that its device had to give; 0: there is none, or it is not known

  bool known() const { return !host.empty(); }
};

// Describes this process's machine, now, read by that version of hayloft.
ProfileOrigin origin_here(const offload::Topology& topology, const std::string& version = "");

// Says how far the turns lay apart whose median a rate is.
struct RateSpread {
  std::string
      what;  // the rate's field, "dense_GBps"; of reading memory "near_reads", in their order, and "near_read_GBps"
  int head_dim = 0;  // of attention; else 0
  int group = 0;
  bool small = false;  // over the small footprint
  int runs = 0;
  // As shares of the median rate: that of the slowest turn, the slower and the faster quartile, the fastest turn.
  double slowest = 1, low = 1, high = 1, fastest = 1;

  // Returns whether another run may well say something else: too few turns to tell, or their middle half far apart.
  bool unreliable() const { return runs < 4 || high - low > 0.25; }
};

struct MachineProfile {
  ProfileOrigin origin = {};
  std::string machine;  // in words
  std::string device;   // Backend::name()
  int threads = 0;
  std::uint64_t footprint_bytes = 0;  // over which the rates were measured

  // GB/s, all threads together, as every search uses them, even where fewer are faster: `near_reads` shows that.
  double near_read = 0;
  std::vector<NearRead> near_reads;      // each node by 1, 2, 4 ... and all threads; at least one
  double weight_stream = 0;              // GB/s of f16 weights, one token at a time
  double matmul = 0;                     // GFLOP/s, many tokens at a time
  double layer_overhead_us = 0;          // a layer of a decode step when its matrices are next to nothing
  std::optional<double> link_to_device;  // GB/s; none without a device of its own
  std::optional<double> link_to_host;
  LinkColumns link_columns_f16;
  LinkColumns link_columns_int8;
  LinkColumns link_columns_int4;
  std::vector<AttentionRates> attention;  // at least one
  // The same over little memory, all of it at every turn, as a short context is read: how much of a context stays in
  // the processor's cache depends on its size. None, or all that `attention` has.
  std::uint64_t small_footprint_bytes = 0;
  std::vector<AttentionRates> attention_small;

  std::vector<RateSpread> spreads = {};  // of what was timed, in the order of timing; profiles of before have none

  std::vector<std::string> skipped;  // what measure_profile() could not measure, and why; no part of the file

  // For heads that were not measured: those of the nearest dimension, the time per byte interpolated over the group.
  AttentionRates rates(int head_dim, int group) const;
  // For a store of so many bytes, all layers together: the time per byte interpolated, over the logarithm, between the
  // small footprint and a quarter of the large one, for caches have an edge. Stores are compared with footprints, not
  // with the bytes that a step reads, because over a footprint, too, an operation reads its part only, such as the
  // columns.
  AttentionRates rates(int head_dim, int group, std::uint64_t store_bytes) const;

  // Returns what --link auto takes for the columns of each format: the multiprocessors, unless another way is faster by
  // more than they vary from run to run; the copy engine costs a wait of the host in every layer.
  gpu::LinkChoice best_link() const;
};

struct ProfileOptions {
  std::uint64_t footprint_bytes = 0;  // 0: 1 GiB, or a quarter of the arena's budget if that is less
  double seconds = 10;                // about how long to measure
  std::string version = {};           // of the program that measures, for the profile's origin
  // Names those of profile_tests() to run; empty: all, which alone make a profile that can be written.
  std::vector<std::string> tests = {};
};

// A thing that can be measured of a host, with a line on what it is.
struct ProfileTest {
  const char* name;
  const char* what;
};
inline constexpr ProfileTest profile_tests[] = {
    {"memory", "reading memory, of each NUMA node by 1, 2, 4 ... and all threads"},
    {"matrices", "weights with one token and with many, and the overhead of a layer"},
    {"index", "the search of an approximate index"},
    {"attention", "scans of columns and rows, gathers, tails and prompts, per head dimension and group"},
};

// Told what is being measured, before it is.
using ProfileProgress = std::function<void(const std::string& what)>;

// Medians of repeated runs after a warm-up, over memory of the arena that no cache should hold at once. Throws Error
// when the memory is not to be had.
MachineProfile measure_profile(gpu::Backend& backend, offload::Arena& arena, const offload::Topology& topology,
                               const ProfileOptions& options = {}, const ProfileProgress& progress = {});

// JSON, schema "hayloft.profile/1".
std::string profile_json(const MachineProfile& profile);
MachineProfile parse_profile(const std::string& text);  // of what profile_json() wrote
// Throws Error naming the file and the field that is missing or wrong.
MachineProfile read_profile(const std::filesystem::path& path);
// Whole or not at all, in a folder that is made if need be. Throws Error.
void write_profile(const MachineProfile& profile, const std::filesystem::path& path);
// Throws what that would throw at its start, before minutes of measuring; makes the folder as it does.
void require_profile_writable(const std::filesystem::path& path);

// The profile at `given`; when that is empty, the one that hayloft link keeps at default_profile_path(), nothing when
// there is none. Throws Error on one that cannot be read.
std::optional<MachineProfile> find_profile(const std::filesystem::path& given = {});

// Says what a reader of numbers must know of a profile: that it is of another machine, of another hayloft, or old.
struct ProfileDoubt {
  bool other_machine = false;  // of another processor: its times say nothing here
  std::string what;            // "is of another machine, host (processor)"; empty: nothing
};
ProfileDoubt doubt(const ProfileOrigin& profile, const ProfileOrigin& here);

// Returns what `auto` predicts by, in a model with so many global layers, computed by the backend of that name: of the
// profile where there is one of that device, else built_in_rates(). `source` names the profile's file, if it has one.
std::shared_ptr<const MachineRates> machine_rates(const std::optional<MachineProfile>& profile,
                                                  const std::string& device, int global_layers,
                                                  const std::string& source = "the machine profile");

// $XDG_CACHE_HOME/hayloft/profile.json, else ~/.cache/hayloft/profile.json. Throws Error when neither is set.
std::filesystem::path default_profile_path();

}  // namespace hayloft::runtime::plan
