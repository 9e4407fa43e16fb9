#pragma once

#include "offload/byte_stream.h"
#include "offload/snapshot/format.h"

// Shared by the reading and the writing of headers and metadata: format.cpp, metadata.cpp.
namespace hayloft::offload {

inline constexpr const char* snapshot_too_short = "the metadata end too early";

void put(ByteWriter& out, const ByteRange& range);
ByteRange get_range(ByteReader& in);

// No two ranges may share a byte.
void require_disjoint(std::vector<ByteRange> ranges);

void check_tokens(const char* what, std::int64_t tokens, std::int64_t most);

// The range, which must lie in the file behind its header and be aligned.
ByteRange claim(const SnapshotHeader& header, const char* what, std::uint64_t offset, std::uint64_t bytes);

}  // namespace hayloft::offload
