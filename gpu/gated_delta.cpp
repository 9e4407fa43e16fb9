#include "gpu/gated_delta.h"

#include "offload/error.h"

namespace hayloft::gpu {

void require_delta_shape(const DeltaShape& shape) {
  if (shape.key_heads < 1 || shape.value_heads < 1 || shape.value_heads % shape.key_heads != 0) {
    fail(
        "a layer of gated delta rules with {} key heads and {} value heads: the latter must be a multiple of the "
        "former",
        shape.key_heads, shape.value_heads);
  }
  if (shape.key_dim < 1 || shape.key_dim > DeltaShape::most_key_dim || shape.value_dim < 1) {
    fail("a layer of gated delta rules with keys of {} and values of {}: keys must be 1 to {} long, values at least 1",
         shape.key_dim, shape.value_dim, DeltaShape::most_key_dim);
  }
  if (shape.kernel < 1 || shape.kernel > DeltaShape::most_kernel) {
    fail("a layer of gated delta rules whose convolution takes {} inputs: it must take 1 to {}", shape.kernel,
         DeltaShape::most_kernel);
  }
}

}  // namespace hayloft::gpu
