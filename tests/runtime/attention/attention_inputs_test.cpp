// Attention as a trained model really has it: q, k and v recorded over 512 tokens of text, many heads diffuse. Needs
// the folder that HAYLOFT_TEST_DATA names; skipped without it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "gpu/make_backend.h"
#include "offload/half.h"
#include "runtime/attention/attend_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::recorded {
namespace {

constexpr int layers = 8, heads = 4, query_heads = 8, d = 32, tokens = 512;
constexpr int first_query = 504;  // the last eight tokens ask, each as a query of its own over the whole cache
constexpr int queries = tokens - first_query;

class RecordedAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("HAYLOFT_TEST_DATA");
    if (!data) GTEST_SKIP() << "HAYLOFT_TEST_DATA is not set; it names the folder that holds attention/";
    const std::filesystem::path recorded = std::filesystem::path(data) / "attention";
    const auto all_q = read(recorded / "q_T512_L8_256.f32", tokens * layers * query_heads * d);
    const auto all_k = read(recorded / "k_L8_T512_128.f32", layers * tokens * heads * d);
    const auto all_v = read(recorded / "v_L8_T512_128.f32", layers * tokens * heads * d);
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> layer_q, layer_k, layer_v;
      for (int t = first_query; t < tokens; ++t) {
        const auto row = all_q.begin() + (t * layers + layer) * query_heads * d;
        layer_q.insert(layer_q.end(), row, row + query_heads * d);
      }
      for (int head = 0; head < heads; ++head) {
        for (int t = 0; t < tokens; ++t) {
          const int at = ((layer * tokens + t) * heads + head) * d;
          layer_k.insert(layer_k.end(), all_k.begin() + at, all_k.begin() + at + d);
          layer_v.insert(layer_v.end(), all_v.begin() + at, all_v.begin() + at + d);
        }
      }
      const TensorToWrite tensors[] = {{"q", "F32", {queries, query_heads, d}, std::as_bytes(std::span(layer_q))},
                                       {"k", "F32", {heads, tokens, d}, std::as_bytes(std::span(layer_k))},
                                       {"v", "F32", {heads, tokens, d}, std::as_bytes(std::span(layer_v))}};
      write_safetensors(file(layer), tensors);
      q.push_back(std::move(layer_q));
      k.push_back(std::move(layer_k));
      v.push_back(std::move(layer_v));
    }
  }

  static std::vector<float> read(const std::filesystem::path& path, std::size_t count) {
    std::vector<float> values(count);
    std::ifstream in(path, std::ios::binary);
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(float)));
    EXPECT_TRUE(in) << path << " is too short";
    return values;
  }

  std::filesystem::path file(int layer) const { return folder / fmt::format("{}.safetensors", layer); }

  AttendOutput attend(int layer, std::string_view method, const MethodOptions& defaults = {}) {
    return attend_file(file(layer), parse_method(method, defaults), *backend, arena, {64});
  }

  // Softmax attention in double precision over K and V as the store holds them, rounded to f16.
  std::vector<double> exact(int layer, int query, int query_head) const {
    const int head = query_head / (query_heads / heads);
    const float* at = q[layer].data() + (query * query_heads + query_head) * d;
    std::vector<double> weight(tokens);
    double most = -std::numeric_limits<double>::infinity();
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < d; ++i) weight[t] += double{at[i]} * half(k[layer][(head * tokens + t) * d + i]);
      weight[t] /= std::sqrt(double{d});
      most = std::max(most, weight[t]);
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - most);
    std::vector<double> y(d);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < d; ++i) y[i] += weight[t] / sum * half(v[layer][(head * tokens + t) * d + i]);
    }
    return y;
  }
  static double half(float x) { return to_float(to_f16(x)); }

  // |y - exact| / |exact|, over all layers, heads and queries together.
  double relative_error(std::string_view method, const MethodOptions& defaults = {}) {
    double error = 0, norm = 0;
    for (int layer = 0; layer < layers; ++layer) {
      const AttendOutput output = attend(layer, method, defaults);
      for (int row = 0; row < queries * query_heads; ++row) {
        const std::vector<double> y = exact(layer, row / query_heads, row % query_heads);
        for (int i = 0; i < d; ++i) {
          error += (output.y[row * d + i] - y[i]) * (output.y[row * d + i] - y[i]);
          norm += y[i] * y[i];
        }
      }
    }
    return std::sqrt(error / norm);
  }

  test::TemporaryFolder folder;
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  std::vector<std::vector<float>> q, k, v;  // by layer: [queries][Hq][d], [Hkv][S][d] twice
};

TEST_F(RecordedAttention, DenseAndWhateverAttendsToEverythingAreExact) {
  // Sums of 512 terms in f32, exponentials within 1e-6.
  EXPECT_LT(relative_error("dense"), 1e-5);
  EXPECT_LT(relative_error("sparq:r=32:k=512"), 1e-5);
  EXPECT_LT(relative_error("topk:k=512"), 1e-5);
  EXPECT_LT(relative_error("window:k=512"), 1e-5);
}

TEST_F(RecordedAttention, FaissAndTheOwnSearchSelectTheSamePositions) {
  MethodOptions faiss;
  faiss.faiss = true;
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(attend(layer, "topk:k=32", faiss).positions, attend(layer, "topk:k=32").positions) << "layer " << layer;
  }
}

TEST_F(RecordedAttention, ErrorsAreOrderedAsThePapersSay) {
  MethodOptions without_mean;
  without_mean.mean_value = false;
  const double sparq = relative_error("sparq:r=16:k=128");
  const double topk = relative_error("topk:k=128");
  const double window = relative_error("window:k=128");
  fmt::print("relative error of the output, k = 128 of 512: sparq r=16 {:.4f}, topk {:.4f}, window {:.4f}\n", sparq,
             topk, window);
  EXPECT_LT(sparq, window);  // what is chosen by content beats what is chosen by age
  // On heads this diffuse the largest weights alone say little, and nothing stands in for the rest: only more positions
  // help.
  EXPECT_LT(relative_error("topk:k=256"), topk);
  EXPECT_LT(relative_error("topk:k=448"), 0.5 * topk);
  // More columns, more positions and the mean value each make SparQ better (SparQ, figure 7).
  EXPECT_LT(sparq, relative_error("sparq:r=4:k=128"));
  EXPECT_LT(sparq, relative_error("sparq:r=16:k=32"));
  EXPECT_LT(sparq, relative_error("sparq:r=16:k=128", without_mean));
}

}  // namespace
}  // namespace hayloft::runtime::recorded
