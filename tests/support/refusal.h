#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "offload/error.h"

namespace hayloft::test {

// The message of the Error that `action` throws; "(no Error)" when it throws none.
template <class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no Error)";
}

// Succeeds when `action` throws an Error of one line that holds every one of `parts`: the file, the field, the reason.
template <class Action>
::testing::AssertionResult refuses(Action&& action, std::initializer_list<std::string> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "not one line: " << message;
    for (const std::string& part : parts) {
      if (message.find(part) == std::string::npos) {
        return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << message;
      }
    }
    return ::testing::AssertionSuccess() << message;
  }
  return ::testing::AssertionFailure() << "no Error was thrown";
}

}  // namespace hayloft::test
