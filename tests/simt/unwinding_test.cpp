#include <functional>

#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Operations that stop halfway, because any one call of the runtime fails: what they had queued until then must not
// reach memory that they have given back, and the next one finds everything as it was.
namespace hayloft::testing {
namespace {

class ThrowBetweenFillAndWait : public ::testing::Test {
 protected:
  using Operation = std::function<std::vector<float>()>;

  void SetUp() override { simt::reset(); }
  void TearDown() override { simt::reset(); }

  // Runs the operation as often as it makes such calls, with another one failing each time and the streams in another
  // order. Returns how many there are.
  static int fail_each(const char* call, gpu::Backend& cuda, const Operation& operation) {
    simt::reset();
    const std::vector<float> expected = operation();
    for (int n = 1;; ++n) {
      simt::reset(static_cast<std::uint64_t>(n));
      simt::fail_call(call, n, cudaErrorNotSupported);
      bool failed = false;
      try {
        operation();
      } catch (const Error&) {
        failed = true;
      }
      for (const gpu::Stream stream : {cuda.stream(), cuda.load_stream(), cuda.spill_stream()}) {
        cuda.synchronize(stream);
      }
      if (!failed) return n - 1;
      EXPECT_EQ(operation(), expected) << "after call " << n << " of " << call << " had failed";
    }
  }
  static void fail_every_call(gpu::Backend& cuda, const Operation& operation) {
    int failures = 0;
    for (const char* call : {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaEventRecord", "cudaStreamWaitEvent",
                             "cudaLaunchKernelEx", "cudaMallocFromPoolAsync", "cudaEventSynchronize"}) {
      failures += fail_each(call, cuda, operation);
    }
    EXPECT_GT(failures, 5);
  }

  static constexpr int query_heads = 2, d = 16, tokens = 300 + 20;
  const CacheShape shape{.kv_heads = 1, .head_dim = d, .block_tokens = 64, .stored = 300, .tail = 20};

  // Attention to everything, and to a list of positions beside the tail.
  void attend(SharedCache::Host host) const {
    const auto cuda = make_cuda({.keep_steps = false});
    SharedCache cache(*cuda, shape, host);
    const gpu::Buffer q = upload(*cuda, random_query(query_heads, d, 1));
    const gpu::Buffer positions = upload(*cuda, std::vector<std::int32_t>{3, 70, 150, 200});
    const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
    for (const bool everything : {true, false}) {
      gpu::Attended what;
      what.ranges[0] = {everything ? 0 : 280, tokens};
      if (!everything) {
        what.positions = positions.as<std::int32_t>();
        what.lists = 1;
        what.k = 4;
      }
      fail_every_call(*cuda, [&] {
        cuda->attend(cache.on_cuda(), q.as<float>(), query_heads, what, out.as<float>(), cuda->stream());
        return download<float>(*cuda, out);
      });
    }
  }

  void select(SharedCache::Host host, gpu::Link link) const {
    const auto cuda = make_cuda({.link = link, .keep_steps = false});
    SharedCache cache(*cuda, shape, host);
    const gpu::Buffer q = upload(*cuda, random_query(query_heads, d, 1));
    const gpu::Buffer positions = cuda->allocate(20 * sizeof(std::int32_t), cuda->stream());
    const gpu::Buffer alpha = cuda->allocate(query_heads * sizeof(float), cuda->stream());
    gpu::SparqSelect args;
    args.rank = 4;
    args.k = 20;
    args.limit = 300;
    fail_every_call(*cuda, [&] {
      cuda->select_sparq(cache.on_cuda(), q.as<float>(), query_heads, args, positions.as<std::int32_t>(),
                         alpha.as<float>(), cuda->stream());
      std::vector<float> found = download<float>(*cuda, alpha);
      for (const std::int32_t position : download<std::int32_t>(*cuda, positions)) {
        found.push_back(static_cast<float>(position));
      }
      return found;
    });
  }

  void read(SharedCache::Host host) const {
    const auto cuda = make_cuda({.keep_steps = false});
    SharedCache cache(*cuda, shape, host);
    constexpr int T = 4;
    const gpu::Buffer q = upload(*cuda, normal(T * query_heads * d, 1));
    const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
    fail_every_call(*cuda, [&] {
      cuda->attend_causal(cache.on_cuda(), q.as<float>(), T, query_heads, {}, out.as<float>(), cuda->stream());
      return download<float>(*cuda, out);
    });
  }
};

// Runs steps over a device that keeps columns and rows, of which it has none yet.
class HeldSteps {
 public:
  HeldSteps() {
    for (const unsigned seed : {1u, 2u}) queries_.push_back(upload(*cuda_, random_query(query_heads, d, seed)));
    args_.rank = 4;
    args_.k = k;
    args_.limit = stored;
    what_.positions = positions_.as<std::int32_t>();
    what_.lists = 1;
    what_.k = k;
    what_.ranges[0] = {stored, stored + tail};
  }
  std::vector<float> run() {
    std::vector<float> all;
    for (const gpu::Buffer& q : queries_) {
      const std::unique_ptr<gpu::Step> step = cuda_->begin_step(1);
      const gpu::CacheView view = cache_.on_cuda();
      cuda_->fetch_ahead(view, cuda_->stream());
      cuda_->select_sparq(view, q.as<float>(), query_heads, args_, positions_.as<std::int32_t>(), alpha_.as<float>(),
                          cuda_->stream());
      cuda_->attend(view, q.as<float>(), query_heads, what_, out_.as<float>(), cuda_->stream());
      step->ends();
      const std::vector<float> values = download<float>(*cuda_, out_);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static constexpr int query_heads = 2, d = 16, stored = 600, tail = 20, k = 20;
  const std::unique_ptr<gpu::Backend> cuda_ = make_cuda(
      {.column_cache_bytes = std::uint64_t{1} << 20, .row_cache_bytes = std::uint64_t{1} << 20, .keep_steps = false});
  SharedCache cache_{*cuda_,
                     {.kv_heads = 1, .head_dim = d, .block_tokens = 256, .stored = stored, .tail = tail},
                     SharedCache::Host::pinned};
  const gpu::Buffer out_ = cuda_->allocate(query_heads * d * sizeof(float), cuda_->stream());
  const gpu::Buffer positions_ = cuda_->allocate(k * sizeof(std::int32_t), cuda_->stream());
  const gpu::Buffer alpha_ = cuda_->allocate(query_heads * sizeof(float), cuda_->stream());
  std::vector<gpu::Buffer> queries_;
  gpu::SparqSelect args_;
  gpu::Attended what_;
};

// Kernels of a step are launched when the operations that queued them are done, and what the device keeps has been
// noted.
TEST_F(ThrowBetweenFillAndWait, OfStepsWhoseKernelsAreHeld) {
  const std::vector<float> expected = HeldSteps().run();
  int n = 1;
  for (bool failed = true; failed; ++n) {
    simt::reset(static_cast<std::uint64_t>(n));
    HeldSteps steps;
    simt::fail_call("cudaLaunchKernelEx", n, cudaErrorLaunchOutOfResources);
    failed = false;
    try {
      steps.run();
    } catch (const Error&) {
      failed = true;
    }
    simt::reset(static_cast<std::uint64_t>(n));
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(steps.run(), expected) << "after launch " << n << " had failed";
    }
  }
  EXPECT_GT(n, 10);
}

TEST_F(ThrowBetweenFillAndWait, OfRowsThatAreCopied) {
  attend(SharedCache::Host::pinned);
}
TEST_F(ThrowBetweenFillAndWait, OfRowsThatAreStaged) {
  attend(SharedCache::Host::pageable);
}
TEST_F(ThrowBetweenFillAndWait, OfColumnsThatAreCopied) {
  select(SharedCache::Host::pinned, gpu::Link::copy);
}
TEST_F(ThrowBetweenFillAndWait, OfColumnsThatAreStaged) {
  select(SharedCache::Host::pageable, gpu::Link::sm);
}
TEST_F(ThrowBetweenFillAndWait, OfAPromptThatIsRead) {
  read(SharedCache::Host::pinned);
  read(SharedCache::Host::pageable);
}

}  // namespace
}  // namespace hayloft::testing
