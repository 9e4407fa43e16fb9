#include <cstring>

#include "offload/half.h"
#include "python/src/bindings.h"

namespace hayloft::python {
namespace {

py::ssize_t bytes_of(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  fail("dtype {}: must be F64, F32, F16, BF16, I32 or I64", dtype);
}

bool contiguous(const py::buffer_info& info) {
  py::ssize_t stride = info.itemsize;
  for (py::ssize_t i = info.ndim; i-- > 0;) {
    if (info.shape[static_cast<std::size_t>(i)] > 1 && info.strides[static_cast<std::size_t>(i)] != stride)
      return false;
    stride *= info.shape[static_cast<std::size_t>(i)];
  }
  return true;
}

template <class T>
const char* numpy_name();
template <>
const char* numpy_name<float>() {
  return "float32";
}
template <>
const char* numpy_name<f16>() {
  return "float16";
}
template <>
const char* numpy_name<std::int32_t>() {
  return "int32";
}

}  // namespace

ArrayView::ArrayView(const py::buffer& array, const std::string& dtype, const char* name) : info_(array.request()) {
  if (info_.itemsize != bytes_of(dtype))
    fail("{}: has elements of {} bytes, and {} has {}", name, info_.itemsize, dtype, bytes_of(dtype));
  if (!contiguous(info_)) fail("{}: the array is not contiguous", name);
  tensor_.dtype = dtype;
  tensor_.shape.assign(info_.shape.begin(), info_.shape.end());
  tensor_.data = {static_cast<const std::byte*>(info_.ptr), static_cast<std::size_t>(info_.size * info_.itemsize)};
}

template <class T>
py::object empty_array(const std::vector<std::int64_t>& shape) {
  return py::module_::import("numpy").attr("empty")(py::tuple(py::cast(shape)), numpy_name<T>());
}
template py::object empty_array<float>(const std::vector<std::int64_t>&);

template <class T>
py::object make_array(const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
  py::object array = empty_array<T>(shape);
  const py::buffer_info to = py::buffer(array).request(true);
  if (static_cast<std::size_t>(to.size) != values.size()) throw std::logic_error("make_array: shape and values differ");
  if (!values.empty()) std::memcpy(to.ptr, values.data(), values.size() * sizeof(T));
  return array;
}
template py::object make_array(const std::vector<float>&, const std::vector<std::int64_t>&);
template py::object make_array(const std::vector<f16>&, const std::vector<std::int64_t>&);
template py::object make_array(const std::vector<std::int32_t>&, const std::vector<std::int64_t>&);

py::str system_text(std::string_view text) {
  PyObject* const decoded = PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<py::ssize_t>(text.size()));
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

void check_signals() {
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace hayloft::python
