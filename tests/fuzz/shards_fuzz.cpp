#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "offload/error.h"
#include "offload/snapshot/format.h"
#include "offload/snapshot/shards.h"
#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/snapshot_fixture.h"

// Whatever the manifest of a context in shards holds, and the headers of its shards, opening it as any part of any
// number of ranks and reading all of that either succeeds or throws Error. An input is the part and a list of edits,
// whose checksums are then made right; or, for the checksum itself, a whole manifest.
namespace {

using namespace hayloft;
using namespace hayloft::offload;

constexpr std::size_t kFields = 400;  // of a slot, its checksum and padding aside
constexpr std::size_t kPlaces = manifest_bytes - 8 + 2 * kFields;

// Two shards of a context without blocks in the second: as a short text leaves it.
struct Good {
  Good() {
    char name[] = "/dev/shm/hayloft-fuzz-XXXXXX";  // memory: an input is three files
    if (!::mkdtemp(name)) std::abort();
    path = std::filesystem::path(name) / "ctx.hay";
    test::SmallContext context(arena);
    context.grow_to(30);
    std::vector<TailImage> tails = context.tails();
    for (TailImage& tail : tails) {
      if (tail.store_layer >= 0) tail.whole_sum = context.store().exact_value_sum(tail.store_layer);
    }
    const Store empty(arena, test::small_description().shape);
    for (int rank = 0; rank < 2; ++rank) {
      SnapshotDescription description = test::small_description();
      description.shard = {rank, 2};
      description.saving = 7;
      const std::filesystem::path shard = shard_path(path, 7, description.shard);
      SnapshotWriter writer = SnapshotWriter::create(shard, description);
      writer.checkpoint(rank == 0 ? context.store() : empty, context.tokens(), tails, {}, true);
      writer.finish(shard);
      shards.push_back(shard);
      images.push_back(test::bytes_of(shard));
      // Its last sequence number is 3, in slot 1; the other slot would be taken where that one is refused.
      std::memset(images.back().data(), 0, snapshot_slot_bytes);
    }
    manifest = encode_manifest({7, 2, 30, test::small_description().model.fingerprint});
  }
  ~Good() { std::filesystem::remove_all(path.parent_path()); }

  Topology topology;
  Arena arena{topology, ArenaOptions{std::uint64_t{16} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};
  std::filesystem::path path;
  std::vector<std::filesystem::path> shards;
  std::vector<std::string> images;
  std::array<std::byte, manifest_bytes> manifest;
};

void write(const std::filesystem::path& path, const void* data, std::size_t bytes) {
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void set_checksum(char* data, std::size_t place) {
  const std::uint64_t sum = snapshot_checksum(std::as_bytes(std::span(data, place)));
  std::memcpy(data + place, &sum, sizeof sum);
}

bool read_all(const Good& good, Arena& arena, const Shard& part) {
  try {
    const Snapshot snapshot = Snapshot::open(good.path, Snapshot::Accept::complete, part);
    const Store store = snapshot.store(arena);
    for (int layer = 0; layer < store.shape().layers; ++layer) snapshot.stored_tokens(layer);
    for (int layer = 0; layer < snapshot.description().model_layers; ++layer) snapshot.tail(layer);
    snapshot.content_digest();
    snapshot.verify();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Good good;
  if (size < 2) return 0;
  const Shard part{data[0] % (data[1] % 5 + 1), data[1] % 5 + 1};
  const bool whole = data[0] == 'H';
  data += 2, size -= 2;
  std::vector<std::string> images = good.images;
  auto manifest = good.manifest;
  const std::size_t edits = whole ? 0 : size;
  for (std::size_t at = 0; at + 11 <= edits; at += 11) {  // where, how many bytes, which
    const std::size_t where = (data[at] | data[at + 1] << 8) % kPlaces;
    const std::size_t bytes = std::size_t{1} << data[at + 2] % 4;
    if (where < manifest_bytes - 8) {
      std::memcpy(manifest.data() + where, data + at + 3, std::min(bytes, manifest_bytes - 8 - where));
    } else {
      const std::size_t field = where - (manifest_bytes - 8);
      std::memcpy(images[field / kFields].data() + snapshot_slot_bytes + field % kFields, data + at + 3, bytes);
    }
  }
  set_checksum(reinterpret_cast<char*>(manifest.data()), manifest_bytes - 8);
  for (std::size_t i = 0; i < images.size(); ++i) {
    set_checksum(images[i].data() + snapshot_slot_bytes, snapshot_slot_bytes - 8);
    write(good.shards[i], images[i].data(), images[i].size());
  }
  if (whole) {
    write(good.path, data, size);
  } else {
    write(good.path, manifest.data(), manifest.size());
  }
  if (!read_all(good, good.arena, part) && !whole && edits < 11) std::abort();  // without an edit they are good files
  return 0;
}
