#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "runtime/attention/counters.h"
#include "runtime/checkpoint/safetensors.h"

// Shared by the files of the extension: arrays through the buffer protocol, which binds it to no version of NumPy.
namespace hayloft::python {

namespace py = pybind11;

// An array of Python's, row-major, seen as a tensor. Made, kept and destroyed while the interpreter is locked; the
// tensor may be read without.
class ArrayView {
 public:
  // dtype: F64, F32, F16 or BF16, the last over an array of 16-bit integers; I32, I64. Throws Error naming the array
  // when it is no such array or not contiguous.
  ArrayView(const py::buffer& array, const std::string& dtype, const char* name);

  const runtime::TensorView& tensor() const { return tensor_; }
  template <class T>
  std::span<const T> values() const {
    return {static_cast<const T*>(info_.ptr), static_cast<std::size_t>(info_.size)};
  }

 private:
  py::buffer_info info_;
  runtime::TensorView tensor_;
};

// These make an array of NumPy's of that shape: with whatever is there, and with the values.
template <class T>
py::object empty_array(const std::vector<std::int64_t>& shape);
template <class T>
py::object make_array(const std::vector<T>& values, const std::vector<std::int64_t>& shape);

// Decodes text of the system's, such as the name of a file: bytes that are no UTF-8 stay as os.fsdecode has them.
py::str system_text(std::string_view text);

// A signal (Ctrl-C) that has arrived meanwhile becomes its exception. To be called without the interpreter's lock.
void check_signals();

// With the keys of hayloft.Counters.
py::dict counters_dict(const runtime::Counters& counters);

void bind_machine(py::module_& module);
void bind_attend(py::module_& module);
void bind_model(py::module_& module);
void bind_session(py::module_& module);
void bind_cache(py::module_& module);
void bind_plan(py::module_& module);
void bind_eval(py::module_& module);
void bind_method(py::module_& module);

}  // namespace hayloft::python
