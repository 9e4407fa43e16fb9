#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weights/weights.h"

namespace hayloft::runtime {

// Takes tensors from the checkpoint to the device, or only counts their bytes when there is no device. Without a
// checkpoint, too, it counts what one with matrices of `type` would hold. The memory behind the matrices and pointers
// that it returns belongs to `weights` and lasts as long as that does; this object may go first, after finish(). Not
// thread safe; the checkpoint's methods and this one's throw Error naming tensor and file.
class WeightUpload {
 public:
  // packing: of the matrices of a model that is not there, instead of `type`. experts_on_host: what is taken of a
  // mixture stays in host memory of the backend.
  WeightUpload(Checkpoint* checkpoint, WeightForm form, gpu::DType type, gpu::Backend* backend, Weights& weights,
               const std::optional<gpu::Packing>& packing = std::nullopt, bool experts_on_host = false);

  // While it lives, what is taken is of an expert that a router chooses.
  class OfMixture {
   public:
    explicit OfMixture(WeightUpload& upload);
    OfMixture(const OfMixture&) = delete;
    OfMixture& operator=(const OfMixture&) = delete;
    ~OfMixture();

   private:
    WeightUpload& upload_;
    std::uint64_t before_;
  };

  // Whatever was handed over has reached the device.
  void finish();

  // A matrix of which single rows are read. It stays in host memory where there is other memory.
  gpu::Matrix table(const std::string& name, int rows, int cols);

  gpu::Matrix matrix(const std::string& name, int rows, int cols);

  // One that stays as the checkpoint has it, whatever the form of the others.
  gpu::Matrix unquantised(const std::string& name, int rows, int cols);

  // Does the same for a matrix that a gate is computed by: what a gate makes of infinity is a number again, so that one
  // whose numbers are not all finite throws Error.
  gpu::Matrix gate(const std::string& name, int rows, int cols);

  // Returns, of the rows of each head of a matrix [heads][2 d][cols], the first d (half 0) or the last (1): [heads
  // d][cols].
  gpu::Matrix half_of_heads(const std::string& name, int heads, int d, int cols, int half);

  // [n], with `plus` added to each.
  const float* vector(const std::string& name, int n, float plus = 0);

  // A tensor of that shape as it is, on the host; zeros without a checkpoint.
  std::vector<float> numbers(const std::string& name, std::initializer_list<int> shape);

  // The weights of a norm, as what they multiply by.
  const float* norm(const std::string& name, int n, const ModelConfig& config);

  float* values(std::vector<float> x);

 private:
  void refuse_damage(const std::string& name, std::span<const float> numbers) const;

  // Packs rows of a tile, false where a number is beyond the range of f16: see gguf::pack_tile.
  using PackTile = std::function<bool(std::span<const std::byte* const> rows, std::byte* out)>;

  gpu::Matrix take(const std::string& name, const CheckpointTensor& tensor, int rows, int cols);
  gpu::Matrix as_wanted(const std::string& name, const CheckpointTensor& tensor, int rows, int cols);
  gpu::Matrix counted(gpu::Matrix matrix);
  gpu::Matrix plain(const CheckpointTensor& tensor, int rows, int cols);
  gpu::Matrix packed(const std::string& name, const CheckpointTensor& tensor, int rows, int cols,
                     const gpu::Packing& packing, const PackTile& pack);
  gpu::Matrix as_f16(const CheckpointTensor& tensor, int rows, int cols);
  void* upload(const void* host, std::uint64_t bytes);
  void* make_room(std::uint64_t bytes);
  void* make_room_on_host(std::uint64_t bytes);
  void put(void* room, const void* from, std::uint64_t bytes);

  Checkpoint* checkpoint_;
  WeightForm form_;
  gpu::DType type_;
  std::optional<gpu::Packing> packing_;
  gpu::Backend* backend_;
  bool experts_on_host_;
  Weights& weights_;
  gpu::Stream stream_;
  bool on_host_ = false;     // whether what is uploaded stays there
  bool of_mixture_ = false;  // in memory of experts, of whose last piece so much is taken
  std::uint64_t taken_ = 0;
  std::uint64_t piece_ = 0;                // bytes of that piece
  std::deque<std::vector<float>> staged_;  // copies to the device may still read them until finish()
};

}  // namespace hayloft::runtime
