#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/half.h"
#include "offload/host/arena.h"
#include "offload/store/layout.h"
#include "offload/store/shard.h"
#include "offload/store/store.h"

// A saved context: token ids, the store's blocks and the tails, in one file that is mapped when it is opened again, or
// in one for each rank that made it. The file knows nothing of models but a fingerprint. docs/internals/snapshot.md
// describes the format; snapshot_writer.h writes it.
namespace hayloft::offload {

// Identifies the model that a context belongs to. The fingerprint's meaning is the business of whoever makes it.
struct ModelIdentity {
  std::array<std::uint8_t, 16> fingerprint{};
  std::string name;  // for messages, at most 255 bytes
  // Contexts of this model may have this fingerprint, too, by which they were saved once; it is not saved itself.
  std::optional<std::array<std::uint8_t, 16>> former = {};

  friend bool operator==(const ModelIdentity& a, const ModelIdentity& b) {
    return a.fingerprint == b.fingerprint && a.name == b.name;
  }
};

// The facts that stay the same for the life of a context.
struct SnapshotDescription {
  ModelIdentity model;
  StoreShape shape;
  int model_layers = 0;  // of any kind; each has a tail
  std::string note;      // whatever the maker wants to find again (how the context was prefilled, ...), at most 64 KiB
  // In one of several files that hold a context together (shards.h): whose blocks it has, and the number that the files
  // of one saving share.
  Shard shard = {};
  std::uint64_t saving = 0;

  friend bool operator==(const SnapshotDescription&, const SnapshotDescription&) = default;
};

// The tail of one model layer, as a view: tokens [position, position + tokens). All tails end at the same token, up to
// which the context has keys and values; the tokens behind it are kept as ids only.
struct TailImage {
  int store_layer = -1;       // of a global layer, which then holds [0, position); -1 for others
  std::int64_t position = 0;  // of the first row
  std::int64_t tokens = 0;
  // [Hkv][tokens][2 d], [K | V] as in a block; layers that have no store may have heads of another shape.
  std::span<const f16> rows;
  // In a recurrent layer, which has no rows: what it keeps of the tokens before `position`.
  std::span<const float> state = {};
  // In a global layer of a shard: [Hkv][d], the sum of V over the blocks of all ranks, in their order.
  std::span<const double> whole_sum = {};
  int kv_heads = 0;  // of a layer that has no store and heads of another shape: how many; 0 of others
};

// The same, owning its rows.
struct SnapshotTail {
  int store_layer = -1;
  std::int64_t position = 0;
  std::int64_t tokens = 0;
  std::vector<f16> rows;
  std::vector<float> state = {};
  std::vector<double> whole_sum = {};
  int kv_heads = 0;

  TailImage image() const { return {store_layer, position, tokens, rows, state, whole_sum, kv_heads}; }
};

// Told how much of a long read is done. Throw to stop.
using SnapshotProgress = std::function<void(std::uint64_t bytes, std::uint64_t total)>;

// 32 hexadecimal digits (xxh3-128) that are the same for two contexts exactly when their token ids, and per layer and
// head the rows, columns and value sums of the tokens in the store, and the tails are: nothing of block padding, file
// order or history is in it. `layers` are the store's layers in order.
std::string content_digest(std::span<const std::int32_t> tokens, std::span<const LayerView> layers,
                           std::span<const TailImage> tails, const SnapshotProgress& progress = {});

class MappedFile;
class SnapshotFile;    // an open file
struct ShardManifest;  // shards.h
struct SnapshotState;  // what the file's last checkpoint says

// An opened context, immutable. Movable; a moved-from one may only be destroyed or assigned to. Thread-safe. Stores
// taken from it keep the file mapped for as long as they live. Throws Error, naming the file and what is wrong with it:
// damaged bytes are either found by a checksum or harmless, and nothing is read past the end of the file.
class Snapshot {
 public:
  // Says which files open() takes.
  enum class Accept : std::uint8_t {
    complete,   // refuse what an interrupted writer left behind
    unfinished  // take it as of its last checkpoint, too
  };

  // Maps the file and checks all that later reading trusts. Does not read blocks, tokens or tails. A file that is being
  // written opens as of its last checkpoint; once it has been appended to, tail() may have to refuse.
  //
  // A context in shards is opened by the name of its manifest; `part`: as one of the ranks that hold it together, it
  // has that rank's blocks alone, whatever number of files it lies in, and opens none but those that have them.
  static Snapshot open(const std::filesystem::path& path, Accept accept = Accept::complete, const Shard& part = {});
  // The same of a context in shards whose manifest lies elsewhere: `path` is where it would be here.
  static Snapshot open_shards(const std::filesystem::path& path, const ShardManifest& manifest, const Shard& part);

  Snapshot(Snapshot&&) noexcept;
  Snapshot& operator=(Snapshot&&) noexcept;
  ~Snapshot();

  const std::filesystem::path& path() const;
  const SnapshotDescription& description() const;
  bool complete() const;
  // Says where one of the two slots of a file's header is damaged, and the other, which says the same or is older, is
  // read: whoever damages that one, too, loses the context. Empty where both are sound.
  std::string damaged_slot() const;
  std::int64_t token_count() const;      // as of the last checkpoint
  std::int64_t finished_tokens() const;  // as of the last time it was complete: where an interrupted append began
  std::int64_t cached_tokens() const;    // those that have K and V here: where all tails end. Others are yet to be read
  std::int64_t stored_tokens(int store_layer) const;  // in the blocks that it has
  std::uint64_t file_bytes() const;                   // up to the last checkpoint, of all files that it opened
  const Shard& part() const { return part_; }         // whose blocks it has; see open()
  int files() const;                                  // that the context lies in, its manifest not counted

  // Throws Error saying both names unless the context belongs to this model.
  void require_model(const ModelIdentity& model) const;

  // Returns how many tokens had K and V at the checkpoints before the last that are kept (SnapshotWriter::keep),
  // ascending.
  std::vector<std::int64_t> earlier_checkpoints() const;
  // The context as it was at the last of its checkpoints, the one it is opened at included, that had K and V of at most
  // so many tokens; at an earlier one without attachments, which may know later tokens. Ids that are yet to be read
  // stay where all of them are among the `tokens`. None where every checkpoint has more, and of a context in shards.
  std::optional<Snapshot> back_to(std::int64_t tokens) const;

  std::vector<std::int32_t> tokens() const;  // reads them and checks their checksums
  // Reads it and checks its checksum. In a context without cached tokens, the tails do not know their store layers: -1.
  SnapshotTail tail(int model_layer) const;

  // A store whose first blocks are the mapped ones, which take nothing from the arena's budget; what is appended or
  // forked comes from `arena`. Throws Error on a column format that this program cannot use.
  Store store(Arena& arena) const;

  // Names what was derived from the context and saved with it, under the names it was given: indices over the keys. It
  // may know fewer tokens than the context has. Not part of the digest.
  std::vector<std::string> attachments() const;
  // The bytes of one, mapped for as long as the snapshot or a store taken from it lives; nothing where there is none of
  // this name. Reads it and checks its checksum.
  std::optional<std::span<const std::byte>> attachment(std::string_view name) const;

  // Reads everything: each checksum (the Error names layer and block), and that the value sums are those of the blocks.
  void verify(const SnapshotProgress& progress = {}) const;

  // See content_digest() above. Reads everything, checks no checksum of blocks.
  std::string content_digest(const SnapshotProgress& progress = {}) const;

 private:
  friend class SnapshotWriter;
  Snapshot(std::shared_ptr<const SnapshotFile> file, std::shared_ptr<const SnapshotState> state);
  // Block i of the context lies in shard i mod N; those that `part` needs nothing of are null.
  Snapshot(std::filesystem::path path, std::vector<std::shared_ptr<const Snapshot>> shards, const Shard& part);
  // With `tokens`: as of the checkpoint before the last, where that was complete with so many and the last is not.
  static Snapshot open_file(const std::filesystem::path& path, Accept accept,
                            std::optional<std::int64_t> tokens = std::nullopt);
  const std::byte* block(std::size_t layer, std::size_t index) const;  // of those that it has
  std::shared_ptr<const void> mapped_files() const;
  void check_mapping() const;  // MappedFile::check() of all files
  void verify_shards(const SnapshotProgress& progress) const;

  std::shared_ptr<const SnapshotFile> file_;
  std::shared_ptr<const SnapshotState> state_;
  std::shared_ptr<const MappedFile> mapping_;
  std::filesystem::path path_;
  Shard part_;
  std::vector<std::shared_ptr<const Snapshot>> shards_;  // none: the file is all there is
};

}  // namespace hayloft::offload
