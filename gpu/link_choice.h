#pragma once

#include <cstdint>

#include "offload/store/layout.h"

// Says how the columns of K travel from host memory to a device.
namespace hayloft::gpu {

// Read in place by the multiprocessors, brought by the copy engine, or by both at once.
enum class Link : std::uint8_t { automatic, sm, copy, both };

// One way for the columns of each format that is measured: the fewer bytes a column has, the more the number of copies
// counts.
struct LinkChoice {
  Link f16;
  Link int8;
  Link int4;

  LinkChoice(Link every = Link::automatic)
      : f16(every), int8(every), int4(every) {}  // NOLINT(google-explicit-constructor)
  Link& of(offload::ColumnFormat format) {
    const offload::ColumnFormat way = traits_of(format).link;
    return way == offload::ColumnFormat::f16 ? f16 : way == offload::ColumnFormat::int8 ? int8 : int4;
  }
  Link of(offload::ColumnFormat format) const { return LinkChoice(*this).of(format); }
  friend bool operator==(const LinkChoice&, const LinkChoice&) = default;
};

// The bytes that the fastest link of today carries while the next copy is issued, 2.3 us: shorter copies leave it idle.
inline constexpr std::uint64_t worthwhile_copy_bytes = 128 << 10;

}  // namespace hayloft::gpu
