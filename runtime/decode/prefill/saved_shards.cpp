#include "runtime/decode/prefill/saved_shards.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/clock.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/shards.h"
#include "runtime/cluster/agreement.h"
#include "runtime/decode/prefill/text_end.h"

namespace hayloft::runtime {
namespace {

using cluster::Communicator;
using cluster::Traffic;

void require_new(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) fail("{}: exists already; choose another name or remove it", path.string());
}

// Told by rank 0.
template <class T>
T told(Communicator& ranks, T value) {
  ranks.broadcast(Traffic::start, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

template <class T>
std::vector<T> of_all(Communicator& ranks, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(ranks.ranks()));
  ranks.all_gather(Traffic::start, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

std::uint64_t random_number() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

// The shard of this rank, and then the manifest. Returns the bytes that all of them take.
std::uint64_t save_shards(Communicator& ranks, const std::filesystem::path& path,
                          offload::SnapshotDescription description, const Session& session,
                          const std::vector<std::int32_t>& tokens,
                          std::span<const offload::SnapshotAttachment> beside) {
  description.shard = ranks.shard();
  description.saving = told(ranks, random_number());
  const std::filesystem::path shard = offload::shard_path(path, description.saving, description.shard);
  const std::filesystem::path growing = offload::growing_shard_path(shard);
  std::error_code error;
  std::uint64_t bytes = 0;
  try {
    std::optional<offload::SnapshotWriter> writer;
    cluster::together(ranks, [&] {
      writer.emplace(offload::SnapshotWriter::create(growing, description, true));
      save_checkpoint(*writer, session, tokens, beside, true);
      bytes = writer->file_bytes();
    });
    // Only what nobody's full disk can stop any more gets its name, so that few files are left where a rank is lost
    // now.
    cluster::together(ranks, [&] { writer->finish(shard); });
    cluster::together(ranks, [&] {
      if (ranks.rank() != 0) return;
      require_new(path);
      const auto manifest = offload::encode_manifest(
          {description.saving, ranks.ranks(), static_cast<std::int64_t>(tokens.size()), description.model.fingerprint});
      offload::OutputFile file(path);
      file.write(std::span<const std::byte>(manifest));
      file.commit();
    });
  } catch (const cluster::SharedError&) {  // so that there is no manifest
    std::filesystem::remove(growing, error);
    std::filesystem::remove(shard, error);
    throw;
  }
  const std::vector<std::uint64_t> all = of_all(ranks, bytes);
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}) + offload::manifest_bytes;
}

}  // namespace

IngestResult ingest_over_ranks(const ModelSource& source, offload::Arena& arena, std::string_view text,
                               const std::filesystem::path& path, const IngestOptions& options,
                               const PrefillProgress& progress) {
  Communicator& ranks = *options.session.ranks;
  std::vector<std::int32_t> tokens;
  int removed = 0;
  cluster::together(ranks, [&] {
    tokens = source.tokenizer.encode_prompt(text);
    if (tokens.empty()) fail("there is no text to read into {}", path.string());
    require_new(path);
    offload::require_writable(path);
    if (options.planned) options.planned(options.session, static_cast<std::int64_t>(tokens.size()), 0, 1);
    removed = offload::remove_growing_shards(path);
  });
  const std::vector<int> removed_by = of_all(ranks, removed);

  IngestResult result;
  result.tokens = static_cast<std::int64_t>(tokens.size());
  result.removed = std::accumulate(removed_by.begin(), removed_by.end(), 0);
  const Clock::time_point start = Clock::now();
  Session session(source.model, arena, options.session);
  const auto chunk = static_cast<std::int64_t>(options.session.chunk_tokens);
  const std::int64_t whole = result.tokens / chunk * chunk;
  if (progress) progress(0, result.tokens);
  while (session.tokens() < whole) {
    const auto next = static_cast<std::size_t>(session.tokens());
    session.append(std::span(tokens).subspan(next, static_cast<std::size_t>(chunk)), {}, true);
    if (progress) progress(session.tokens(), result.tokens);
  }
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(session.tokens()));
  const std::vector<offload::SnapshotAttachment> beside = read_text_end(session, rest);
  result.read = beside.empty() ? session.tokens() : result.tokens;
  result.seconds = seconds_since(start);
  result.file_bytes = save_shards(ranks, path, describe_context(source, options.session), session, tokens, beside);
  return result;
}

offload::Snapshot open_over_ranks(Communicator& ranks, const std::filesystem::path& path) {
  std::array<std::byte, offload::manifest_bytes> manifest{};  // zeros: there is none
  cluster::together(ranks, [&] {
    if (ranks.rank() != 0) return;
    if (const auto read = offload::read_manifest(path)) manifest = offload::encode_manifest(*read);
  });
  manifest = told(ranks, manifest);
  std::optional<offload::Snapshot> opened;
  std::string what;
  cluster::together(ranks, [&] {
    const auto of = offload::decode_manifest(manifest);
    opened.emplace(of ? offload::Snapshot::open_shards(path, *of, ranks.shard())
                      : offload::Snapshot::open(path, offload::Snapshot::Accept::complete, ranks.shard()));
    const std::vector<std::int32_t> tokens = opened->tokens();
    const offload::StoreShape& shape = opened->description().shape;
    what = fmt::format("{} {} {} {} {} {} ", opened->description().note, opened->cached_tokens(), shape.layers,
                       shape.block_tokens, offload::name(shape.columns), offload::name(shape.rows));
    what.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t));
  });
  const cluster::Fact facts[] = {{"saved context", what}};
  cluster::require_same(ranks, facts);
  return std::move(*opened);
}

}  // namespace hayloft::runtime
