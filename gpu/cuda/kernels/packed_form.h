#pragma once

#include <cstring>

#include "gpu/backend.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/kernels/packed.cuh"

// Chooses the kernel that was compiled for the packing of a matrix.
namespace hayloft::gpu::cuda {

// Returns what kernels know of a packed matrix in device memory.
inline PackedView view_of(const Matrix& w) {
  const Packing& packing = w.packing;
  PackedView view{
      static_cast<const unsigned char*>(w.data), w.rows, w.cols, packing.tile_bytes(w.cols), packing.zero, {}};
  static_assert(sizeof view.table == sizeof packing.table);
  std::memcpy(view.table, packing.table.data(), sizeof view.table);
  return view;
}

// Calls body(CodeForm) of a packing. Throws Error for one that no kind of file has.
template <class... Forms, class Body>
void with_form_of(const Packing& packing, const Body& body) {
  const auto tried = [&]<class Form>(Form form) {
    const bool found = packing.bits == Form::bits && packing.by_table == Form::by_table &&
                       packing.products == Form::products && packing.minimum == Form::minimum;
    if (found) body(form);
    return found;
  };
  if (!(tried(Forms()) || ...))
    refuse("no kernel for packed weights of ", int{packing.bits}, " bits, minima ", packing.minimum, ", products ",
           packing.products);
}
template <class Body>
void with_form(const Packing& packing, const Body& body) {
  with_form_of<CodeForm<2, false, true, true>, CodeForm<3, false, true, false>, CodeForm<4, false, false, false>,
               CodeForm<4, false, false, true>, CodeForm<4, false, true, true>, CodeForm<4, true, false, false>,
               CodeForm<4, true, true, false>, CodeForm<5, false, false, false>, CodeForm<5, false, false, true>,
               CodeForm<5, false, true, true>, CodeForm<6, false, true, false>, CodeForm<8, false, false, false>>(
      packing, body);
}

}  // namespace hayloft::gpu::cuda
