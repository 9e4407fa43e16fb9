#include <cstdlib>
#include <exception>
#include <utility>

#include "python/src/bindings.h"

// hayloft._core, what the package's Python is written over. It is private: shapes and dtypes are the callers' business.
PYBIND11_MODULE(_core, module) {
  using namespace hayloft::python;
  ::setenv("HWLOC_HIDE_ERRORS", "2", 0);  // where the system does not tell what processors there are
  module.attr("version") = HAYLOFT_VERSION;
  static const py::exception<hayloft::Error> error(module, "Error", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const hayloft::Error& wrong) {  // which may name a file whose name is no UTF-8
      PyErr_SetObject(error.ptr(), system_text(wrong.what()).ptr());
    }
  });
  bind_machine(module);
  bind_attend(module);
  bind_model(module);
  bind_session(module);
  bind_cache(module);
  bind_plan(module);
  bind_eval(module);
  bind_method(module);
}
