#include <cstdlib>

#include "python/src/bindings.h"

// hayloft._core, what the package's Python is written over. It is private: shapes and dtypes are the callers' business.
PYBIND11_MODULE(_core, module) {
  using namespace hayloft::python;
  ::setenv("HWLOC_HIDE_ERRORS", "2", 0);  // where the system does not tell what processors there are
  module.attr("version") = HAYLOFT_VERSION;
  py::register_exception<hayloft::Error>(module, "Error", PyExc_RuntimeError);
  bind_machine(module);
  bind_attend(module);
  bind_model(module);
  bind_session(module);
  bind_cache(module);
  bind_plan(module);
  bind_eval(module);
  bind_method(module);
}
