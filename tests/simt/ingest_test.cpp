#include "runtime/context/ingest.h"

#include "offload/error.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/support/temporary_folder.h"

// A device that is lost while a long text is read: what has been saved is intact, as the message says.
namespace hayloft::simt {
namespace {

using namespace runtime;

class IngestOnALostDevice : public ::testing::Test {
 protected:
  IngestOnALostDevice() {
    options.session.cache.block_tokens = 16;
    options.session.cache.window = 8;
    options.session.chunk_tokens = chunk;
    options.checkpoint_seconds = 0;  // after every chunk
    const auto grammar = eval::make_grammar(3);
    while (tokenizer.encode(text).size() < 3 * chunk + 5) text += grammar->next() + " ";
  }

  IngestResult read(const std::filesystem::path& path) {
    const auto cuda = testing::make_cuda();
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = cuda->pinning();
    offload::Arena arena(topology, memory);
    const Model model(needle_model, *cuda);
    first_launch = calls("cudaLaunchKernelEx");
    const IngestResult result = ingest({model, tokenizer, needle_model}, arena, text, path, options);
    last_launch = calls("cudaLaunchKernelEx");
    return result;
  }

  static std::string digest(const std::filesystem::path& path) {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    snapshot.verify();
    return snapshot.content_digest();
  }

  static constexpr int chunk = 16;
  const std::filesystem::path needle_model = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  test::TemporaryFolder folder;
  const offload::Topology topology;
  const Tokenizer tokenizer{needle_model};
  IngestOptions options;
  std::string text;
  std::int64_t first_launch = 0, last_launch = 0;
};

TEST_F(IngestOnALostDevice, GoesOnFromTheLastCheckpointToTheSameContext) {
  const std::filesystem::path whole = folder / "whole.hay";
  read(whole);
  const std::string expected = digest(whole);
  const std::int64_t begin = first_launch, work = last_launch - first_launch;

  // Lost at a late launch, of a kernel by itself and of several, and at a copy halfway.
  struct Loss {
    const char* call;
    std::int64_t at;
    std::int64_t saved;  // tokens that must have been by then: a chunk less than have been read
  };
  const std::int64_t copies = calls("cudaMemcpyAsync"), graphs = calls("cudaGraphLaunch");
  for (const Loss& loss : {Loss{"cudaLaunchKernelEx", begin + work * 7 / 8, chunk},
                           Loss{"cudaGraphLaunch", graphs, chunk}, Loss{"cudaMemcpyAsync", copies / 2, 0}}) {
    SCOPED_TRACE(std::string(loss.call) + " " + std::to_string(loss.at));
    const std::filesystem::path path = folder / "lost.hay";
    const std::filesystem::path part = folder / "lost.hay.part";
    reset();
    fail_call(loss.call, static_cast<int>(loss.at), cudaErrorECCUncorrectable);
    try {
      read(path);
      ADD_FAILURE() << "nothing was lost";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("lost"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("saved files are intact"), std::string::npos) << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(path));

    reset();  // another process, which has a device
    std::int64_t saved = 0;
    if (std::filesystem::exists(part)) {
      const offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(part);
      writer.snapshot().verify();
      saved = static_cast<std::int64_t>(writer.snapshot().tokens().size());
    }
    const IngestResult resumed = read(path);
    EXPECT_EQ(resumed.resumed_from, saved);
    EXPECT_GE(saved, loss.saved);
    EXPECT_EQ(digest(path), expected);
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace hayloft::simt
