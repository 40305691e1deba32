// Whether a message says what its reader needs.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace hvd {

inline ::testing::AssertionResult says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (message.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "'" << message << "' does not say '" << part << "'";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace hvd
