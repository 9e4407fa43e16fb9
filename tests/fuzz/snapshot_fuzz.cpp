#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "offload/error.h"
#include "offload/snapshot/format.h"
#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/snapshot_fixture.h"

// Whatever a saved context holds, opening it and reading all of it either succeeds or throws Error. Checksums would
// keep a fuzzer out, so an input is a list of edits to the header and the metadata of a good file, whose checksums are
// then made right; or, for the checksums themselves, a whole file.
namespace {

using namespace hayloft;
using namespace hayloft::offload;

constexpr std::size_t kSlot = snapshot_slot_bytes;  // the one slot there is: sequence 1, at its place
constexpr std::size_t kMetadataRange = 120;         // where a slot says where the metadata are, and their checksum
constexpr std::size_t kSlotFields = 400;

template <class T>
T get(const std::string& bytes, std::size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

void put(std::string& bytes, std::size_t place, std::uint64_t value) {
  std::memcpy(bytes.data() + place, &value, sizeof value);
}

// With states, the middle layer has one in place of rows, and earlier checkpoints are kept.
struct Good {
  explicit Good(bool states) {
    char folder[] = "/tmp/hayloft-fuzz-XXXXXX";
    if (!::mkdtemp(folder)) std::abort();
    const std::filesystem::path path = std::filesystem::path(folder) / "ctx.hay";
    SnapshotWriter writer = SnapshotWriter::create(path, test::small_description());
    test::SmallContext context(arena);
    if (states) writer.keep(3);
    const std::vector<float> state(12, 0.5f);
    for (const std::int64_t tokens : {20, 40}) {  // the second checkpoint is the third, in slot 1
      context.grow_to(tokens);
      std::vector<TailImage> tails = context.tails();
      if (states) tails[1] = {-1, tokens, 0, {}, state};
      writer.checkpoint(context.store(), context.tokens(), tails);
    }
    image = test::bytes_of(path);
    std::filesystem::remove_all(folder);
    std::memset(image.data(), 0, kSlot);
    metadata = get<std::uint64_t>(image, kSlot + kMetadataRange);
    metadata_bytes = get<std::uint64_t>(image, kSlot + kMetadataRange + 8);
  }

  Topology topology;
  Arena arena{topology, ArenaOptions{std::uint64_t{16} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};
  std::string image;
  std::size_t metadata = 0;
  std::size_t metadata_bytes = 0;
};

std::string edited(const Good& good, const std::uint8_t* data, std::size_t size) {
  std::string image = good.image;
  for (; size >= 11; data += 11, size -= 11) {  // where, how many bytes, which
    const std::size_t where = (data[0] | data[1] << 8) % (kSlotFields + good.metadata_bytes);
    const std::size_t place = where < kSlotFields ? kSlot + where : good.metadata + where - kSlotFields;
    std::memcpy(image.data() + place, data + 3, std::size_t{1} << data[2] % 4);
  }
  const auto sum = [&](std::size_t place, std::size_t bytes) {
    return snapshot_checksum(std::as_bytes(std::span(image)).subspan(place, bytes));
  };
  const ByteRange metadata{get<std::uint64_t>(image, kSlot + kMetadataRange),
                           get<std::uint64_t>(image, kSlot + kMetadataRange + 8)};
  if (ByteRange{0, image.size()}.holds(metadata)) {
    put(image, kSlot + kMetadataRange + 16, sum(metadata.offset, metadata.bytes));
  }
  put(image, kSlot + kSlot - 8, sum(kSlot, kSlot - 8));
  return image;
}

// Returns whether it could be read.
bool read_all(const std::string& image, Arena& arena) {
  const int descriptor = ::memfd_create("context", MFD_CLOEXEC);
  if (descriptor < 0 || ::write(descriptor, image.data(), image.size()) < 0) std::abort();
  bool read = false;
  try {
    const Snapshot snapshot =
        Snapshot::open("/proc/self/fd/" + std::to_string(descriptor), Snapshot::Accept::unfinished);
    const Store store = snapshot.store(arena);
    for (int layer = 0; layer < store.shape().layers; ++layer) snapshot.stored_tokens(layer);
    snapshot.content_digest();
    snapshot.verify();
    for (const std::int64_t earlier : snapshot.earlier_checkpoints()) snapshot.back_to(earlier)->verify();
    read = true;
  } catch (const Error&) {
  }
  ::close(descriptor);
  return read;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Good plain(false), with_states(true);
  if (size == 0) return 0;
  Good& good = data[0] % 2 == 0 ? plain : with_states;
  if (data[0] == 'H') {
    read_all(std::string(reinterpret_cast<const char*>(data), size), good.arena);
  } else if (!read_all(edited(good, data + 1, size - 1), good.arena) && size == 1) {
    std::abort();  // without an edit it is a good file
  }
  return 0;
}
