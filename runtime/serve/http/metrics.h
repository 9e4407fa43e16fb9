#pragma once

#include <string>

#include "runtime/serve/engine.h"

namespace hayloft::runtime::serve::http {

// Prometheus' text format, version 0.0.4.
std::string metrics_text(const EngineFigures& figures);

}  // namespace hayloft::runtime::serve::http
