#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexScalarQuantizer.h>

#include <cstring>

#include "index/ann/codes.h"

// Codes to and from bytes, field by field: what Faiss itself reads from a file it trusts.
namespace hayloft::index {
namespace {

faiss::ProductQuantizer* product_quantizer(faiss::Index& codes) {
  if (auto* flat = dynamic_cast<faiss::IndexPQ*>(&codes)) return &flat->pq;
  if (auto* lists = dynamic_cast<faiss::IndexIVFPQ*>(&codes)) return &lists->pq;
  return nullptr;
}

faiss::ScalarQuantizer& scalar_quantizer(faiss::Index& codes) {
  if (auto* flat = dynamic_cast<faiss::IndexScalarQuantizer*>(&codes)) return flat->sq;
  return dynamic_cast<faiss::IndexIVFScalarQuantizer&>(codes).sq;
}

// Counts the floats that training leaves behind: a smallest value and a range per component, for those that
// divide a range into steps.
std::uint64_t trained_floats(const faiss::ScalarQuantizer& sq) {
  switch (sq.qtype) {
    case faiss::ScalarQuantizer::QT_8bit:
    case faiss::ScalarQuantizer::QT_6bit:
    case faiss::ScalarQuantizer::QT_4bit:
      return 2 * sq.d;
    default:
      return 0;
  }
}

}  // namespace

void write_quantizer(const faiss::Index& codes, ByteWriter& out) {
  auto& quantizer_of = const_cast<faiss::Index&>(codes);  // only read
  if (const faiss::ProductQuantizer* pq = product_quantizer(quantizer_of)) {
    return out.array(std::span<const float>(pq->centroids));
  }
  out.array(std::span<const float>(scalar_quantizer(quantizer_of).trained));
}

void read_quantizer(faiss::Index& codes, IndexReader& in) {
  if (faiss::ProductQuantizer* pq = product_quantizer(codes)) {
    pq->centroids = in.array<float>(pq->d * pq->ksub);
  } else {
    faiss::ScalarQuantizer& sq = scalar_quantizer(codes);
    sq.trained = in.array<float>(trained_floats(sq));
  }
  codes.is_trained = true;
}

void write_flat_codes(const faiss::Index& codes, ByteWriter& out) {
  const auto& flat = dynamic_cast<const faiss::IndexFlatCodes&>(codes);
  out.array(std::span<const std::uint8_t>(flat.codes.data(), flat.codes.size()));
}

void read_flat_codes(faiss::Index& codes, std::int64_t keys, IndexReader& in) {
  auto& flat = dynamic_cast<faiss::IndexFlatCodes&>(codes);
  const std::vector<std::uint8_t> bytes = in.array<std::uint8_t>(static_cast<std::uint64_t>(keys) * flat.code_size);
  flat.codes.resize(bytes.size());
  if (!bytes.empty()) std::memcpy(flat.codes.data(), bytes.data(), bytes.size());
  flat.ntotal = keys;
}

}  // namespace hayloft::index
